# Zeno with Ray, on CPUs: the image of compose.yaml. Nothing in it listens until Ray is started.
FROM python:3.11-slim

# From its own index, torch comes without CUDA, which would be several GB.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
COPY . /build
RUN pip install --no-cache-dir '/build[ray]' 'ray==2.60.0' && useradd --create-home --uid 1000 zeno

USER 1000
WORKDIR /home/zeno
RUN mkdir runs # a volume that is mounted here then belongs to this user
ENV RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
CMD ["zeno", "--help"]
