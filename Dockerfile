# The relay alone: a static program, no shell, not root.
#
#   docker build -t walrelay --build-arg VERSION=v1.0.0 .

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# Empty: what git says of the source, where its folder .git is here.
ARG VERSION=
RUN CGO_ENABLED=0 go build -ldflags "-s -w -X main.version=${VERSION}" -o /out/walrelay ./cmd/walrelay

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/walrelay /walrelay
USER 65532:65532
# Status, health and metrics. On loopback, that is, in the container only,
# unless --admin says otherwise.
EXPOSE 9640
ENTRYPOINT ["/walrelay"]
CMD ["run"]
