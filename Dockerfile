# docker build -t kvtwin . && docker run --rm -v "$PWD:/work" kvtwin simulate experiments/quickstart.toml --out out
# The first stage builds the Debian package, and the second one installs it: no compiler in the image.
FROM debian:12 AS build
WORKDIR /kvtwin
COPY . .
RUN tools/packages install build package && tools/package deb

FROM debian:12-slim
RUN --mount=type=bind,from=build,source=/kvtwin/out/package,target=/packages \
    apt-get update && apt-get install -y --no-install-recommends /packages/kvtwin_*.deb && rm -rf /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["kvtwin"]
