# shellcheck shell=bash
# Functions for the packages that nfpm builds. scripts/packages/deb and scripts/packages/rpm source this file after lib.sh.

# stage_files: creates the temporary folder $stage with all files that config/packages/nfpm.yaml names.
stage_files() {
    stage=$(mktemp -d)
    trap 'rm -rf "$stage"' EXIT
    scripts/packages/files "$stage"
    sed "s/@DATE@/$(date -u -d "@${SOURCE_DATE_EPOCH:?}" +%F)/" config/packages/system/countersign-admin.8 >"$stage/man/countersign-admin.8"
    gzip -9n "$stage"/man/*
    cp config/packages/system/countersign{.service,.sysusers,.yaml,-admin} LICENSE "$stage/"
    cp "${program:?}" "$stage/countersign"
    cp config/countersign.yaml "$stage/reference.yaml"
    gzip -9nc CHANGELOG.md >"$stage/changelog.gz"
    cp -r config/packages/deb config/packages/rpm "$stage/"
}

# build_with_nfpm KIND: builds the package from $stage into $output.
build_with_nfpm() {
    local architecture compression
    case $(uname -m) in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) warn "no $1 for $(uname -m)"; exit 1 ;;
    esac
    case $1 in
    # lintian of Debian 12 refuses zstd.
    deb) compression=xz ;;
    rpm) compression=zstd:19 ;;
    esac
    # Tests do not need small packages.
    case ${COUNTERSIGN_FAST_PACKAGES:-}$1 in
    1deb) compression=none ;;
    1rpm) compression=zstd:1 ;;
    esac
    sed "s/@ARCH@/$architecture/; s/@VERSION@/${version:?}/; s/@COMPRESSION@/$compression/" config/packages/nfpm.yaml >"$stage/nfpm.yaml"
    venv packages tests/packages/requirements.txt
    find "$stage" -exec touch -h -d "@${SOURCE_DATE_EPOCH:?}" {} +
    (cd "$stage" && "${cache:?}/venv-packages/bin/nfpm" package --config nfpm.yaml --packager "$1" --target "${output:?}/" >/dev/null)
}
