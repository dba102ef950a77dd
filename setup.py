"""Where the packages lie: configs/ of the checkout is chunkwise/configs of a wheel. The rest is in pyproject.toml."""

from setuptools import find_namespace_packages, find_packages, setup

OWN = ("chunkwise", "qchunk", "openpi_ript", "driving")
CONFIGS = ["configs", *(f"configs.{name}" for name in find_namespace_packages("configs"))]

setup(
    packages=[
        *find_packages(include=[pattern for name in OWN for pattern in (name, f"{name}.*")]),
        *(f"chunkwise.{name}" for name in CONFIGS if "__pycache__" not in name),
    ],
    package_dir={"chunkwise.configs": "configs"},
)
