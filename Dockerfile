# The trainer and the dashboard of docker-compose.yml. A plain build installs torch with its CUDA libraries, which are gigabytes;
# --build-arg PIP_EXTRA_INDEX_URL=... adds an index with other builds of torch.
FROM python:3.11-slim

ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

# Files that are written to /runs belong to this user; a volume that is mounted there takes its owner over.
RUN useradd --create-home --uid 1000 trainer && install --directory --owner=trainer /runs

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY pptoolkit pptoolkit
COPY dashboard dashboard
COPY grafana grafana
COPY examples examples
RUN PIP_EXTRA_INDEX_URL="$PIP_EXTRA_INDEX_URL" pip install --constraint constraints.txt ".[train,dashboard,grafana]"

USER trainer
CMD ["pptoolkit", "--help"]
