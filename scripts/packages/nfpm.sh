# shellcheck shell=bash
# Functions for the packages that nfpm builds. scripts/packages/deb and scripts/packages/rpm source this file after lib.sh.

# stage_files: creates the temporary folder $stage with all files that config/packages/nfpm.yaml names.
stage_files() {
    stage=$(mktemp -d)
    trap 'rm -rf "$stage"' EXIT
    scripts/packages/files "$stage"
    cp config/packages/system/countersign-admin.8 "$stage/man/"
    gzip -9n "$stage"/man/*
    cp config/packages/system/countersign{.service,.sysusers,.yaml,-admin} LICENSE "$stage/"
    cp "${program:?}" "$stage/countersign"
    cp config/countersign.yaml "$stage/reference.yaml"
    gzip -9nc CHANGELOG.md >"$stage/changelog.gz"
    cp -r config/packages/deb config/packages/rpm "$stage/"
}

# build_with_nfpm KIND: builds the package from $stage into $output.
build_with_nfpm() {
    local architecture compression=zstd
    case $(uname -m) in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) warn "no $1 for $(uname -m)"; exit 1 ;;
    esac
    [ "$1" = deb ] || compression=zstd:19
    # Tests do not need small packages.
    if [ "${COUNTERSIGN_FAST_PACKAGES:-}" = 1 ]; then
        compression=none
        [ "$1" = deb ] || compression=zstd:1
    fi
    sed "s/@ARCH@/$architecture/; s/@VERSION@/${version:?}/; s/@COMPRESSION@/$compression/" config/packages/nfpm.yaml >"$stage/nfpm.yaml"
    venv packages tests/packages/requirements.txt
    find "$stage" -exec touch -h -d "@${SOURCE_DATE_EPOCH:?}" {} +
    (cd "$stage" && "${cache:?}/venv-packages/bin/nfpm" package --config nfpm.yaml --packager "$1" --target "${output:?}/" >/dev/null)
}
