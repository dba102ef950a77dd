"""Images of a MuJoCo scene where there is no screen."""

import atexit
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import UInt8

from chunkwise.errors import ConfigError

_NOT_INITIALIZED = 0x3001
"""EGL's error where another simulator's package has ended EGL for the process: nothing is left to let go of."""
_LOADERS = ("mujoco.egl", "mujoco.glfw", "mujoco.osmesa")


def import_mujoco() -> Any:
    """Imports MuJoCo, untyped: its stubs lack most functions.

    Raises:
      ConfigError: If MUJOCO_GL names nothing that it knows, which it says as it is imported.
      ImportError: If it is not installed.
    """
    with naming_mujoco_gl():
        return importlib.import_module("mujoco")


@contextlib.contextmanager
def naming_mujoco_gl() -> Iterator[None]:
    """Makes a ConfigError of what is said of a MUJOCO_GL that is unknown, or whose library is not on this machine.

    Whichever package imports MuJoCo first. It says the one itself; of the other PyOpenGL raises what comes to hand.
    """
    try:
        yield
    except RuntimeError as error:
        if "MUJOCO_GL" not in str(error):
            raise
        raise _cannot_render(os.environ.get("MUJOCO_GL", ""), error) from error
    except (AttributeError, ImportError) as error:
        if not _raised_by_gl(error):
            raise
        raise _cannot_render(os.environ.get("MUJOCO_GL", ""), error) from error


def _raised_by_gl(error: Exception) -> bool:
    """Whether an error came through a module that loads a GL library."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(name.split(".")[0] in ("OpenGL", "glfw") or name.startswith(_LOADERS) for name in modules)


def _cannot_render(backend: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"this machine cannot render (MUJOCO_GL={backend}: {error}); set MUJOCO_GL to egl, osmesa or glfw, "
        "whichever works here"
    )


class Renderer:
    """Renders images of one size of one model.

    Unlike MuJoCo's own it does not depend on what MUJOCO_GL was when mujoco was imported.
    """

    def __init__(self, model: Any, height: int, width: int, *, most_geoms: int = 1000) -> None:
        """Opens a GL context for a MuJoCo model.

        Args:
          model: Its buffers are made as large as the image.
          height: Of the image, pixels.
          width: Of the image, pixels.
          most_geoms: Of a scene; more are not drawn.

        Raises:
          ConfigError: If the machine cannot render.
        """
        backend = os.environ.get("MUJOCO_GL") or ("egl" if sys.platform == "linux" else "glfw")
        lib = import_mujoco()
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        try:
            self._gl = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
            self._gl.make_current()
            self._context = lib.MjrContext(model, lib.mjtFontScale.mjFONTSCALE_100)
        except Exception as error:  # whatever the GL driver raises
            raise _cannot_render(backend, error) from error
        lib.mjr_setBuffer(lib.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._lib, self._model = lib, model
        self.scene = lib.MjvScene(model, maxgeom=most_geoms)
        """MuJoCo's, whose flags say what is drawn."""
        self._size, self._rect = (height, width), lib.MjrRect(0, 0, width, height)
        atexit.register(self.close)  # or EGL complains when the process ends

    def render(self, data: Any, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        """Renders the scene as it is."""
        lib = self._lib
        self._gl.make_current()
        # After another simulator's context the first image would come from another buffer.
        lib.mjr_setBuffer(lib.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        view = lib.MjvCamera()
        view.type, view.fixedcamid = lib.mjtCamera.mjCAMERA_FIXED, self._model.camera(camera).id
        everything = lib.mjtCatBit.mjCAT_ALL
        lib.mjv_updateScene(self._model, data, lib.MjvOption(), None, view, everything, self.scene)
        lib.mjr_render(self._rect, self.scene, self._context)
        pixels = np.empty((*self._size, 3), np.uint8)
        lib.mjr_readPixels(pixels, None, self._rect, self._context)
        return np.ascontiguousarray(pixels[::-1])  # GL's rows go upwards

    def close(self) -> None:
        """Lets go of the GL context."""
        atexit.unregister(self.close)
        self._context.free()
        try:
            self._gl.free()
        except Exception as error:
            if getattr(error, "err", None) != _NOT_INITIALIZED:
                raise
            self._gl._context = None  # its finaliser would try again, and complain
