# chunkwise on a CPU, from the lock. For an NVIDIA GPU add a line: RUN .venv/bin/pip install -e '.[cuda]'
#
#   docker build --tag chunkwise .
#   docker run --rm chunkwise python -m chunkwise doctor
#   docker run --rm --volume "$PWD/runs:/chunkwise/runs" chunkwise python -m chunkwise train qchunk/debug
#
# Another base with Python 3.11 or 3.12 on Debian will do: --build-arg BASE=...
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

# EGL and OSMesa render without a screen; git names the commit of a run; make sets the environment up.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git libegl1 libgl1 libosmesa6 make \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /chunkwise
# The packages alone first: this layer stays while only the code changes.
COPY Makefile pyproject.toml requirements*.lock ./
RUN make env COMPILE=1

COPY . .
RUN touch .venv/.ready && .venv/bin/python -m compileall -qq chunkwise configs driving openpi_ript qchunk
ENV PATH=/chunkwise/.venv/bin:$PATH
CMD ["python", "-m", "chunkwise", "doctor"]
