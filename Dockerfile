# docker build -t kvtwin . && docker run --rm kvtwin --help
FROM debian:12
WORKDIR /kvtwin
COPY . .
RUN tools/quickstart
ENTRYPOINT ["build/kvtwin"]
