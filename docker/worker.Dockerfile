# The command tensile-db: installs into a database, and works for it on a device.
ARG PYTHON=python:3.12-slim-bookworm
FROM ${PYTHON}

# Kernels for a GPU are compiled when they are first called.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# The folder is for rows of running jobs.
RUN useradd --create-home --uid 1000 tensile && install -d -o tensile -g tensile /var/cache/tensile_db

# Where packages come from, if not from pip's usual index: a mirror, or one with PyTorch for CPUs alone.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL

WORKDIR /usr/src/tensile_db
# First what seldom changes, so that a change of the code does not fetch PyTorch anew.
COPY pyproject.toml requirements.lock ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; print(*p['dependencies'], *p['optional-dependencies']['gpu'], sep='\n')" \
        > dependencies.txt \
    && pip install --no-cache-dir --constraint requirements.lock --requirement dependencies.txt

COPY README.md ./
COPY sql sql
COPY migrations migrations
COPY tensile_db tensile_db
RUN pip install --no-cache-dir --no-deps .

USER tensile
WORKDIR /home/tensile

ENTRYPOINT ["tensile-db"]
CMD ["--help"]
