# PostgreSQL, and the language that tensile_db's functions are written in.
ARG POSTGRES=postgres:17-bookworm
FROM ${POSTGRES}

RUN apt-get update \
    && apt-get install -y --no-install-recommends "postgresql-plpython3-$PG_MAJOR" \
    && rm -rf /var/lib/apt/lists/*
