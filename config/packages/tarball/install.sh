#!/bin/sh
# Installs the program `countersign` to ~/.local/bin, and changes nothing else.
#
#   curl -fsSL https://github.com/countersign/countersign/releases/latest/download/install.sh | sh
#
# COUNTERSIGN_BASE_URL is the address of the folder with the tarball and SHA256SUMS. To install a certain version, set it to
# https://github.com/countersign/countersign/releases/download/vVERSION.
#
# The script compares the tarball with its checksum in SHA256SUMS. Both come from the same folder, so this detects a damaged or
# incomplete download, not a manipulated folder.
set -eu

base=${COUNTERSIGN_BASE_URL:-https://github.com/countersign/countersign/releases/latest/download}
base=${base%/}
platform=x86_64-unknown-linux-gnu

say() { printf '%s\n' "$*"; }
fail() {
    printf 'countersign was not installed: %s\n' "$*" >&2
    exit 1
}

# download URL FILE
download() {
    if command -v curl >/dev/null 2>&1; then
        # A redirect from HTTPS must not lead to an unencrypted address.
        case $base in
        https://*) curl --proto '=https' --fail --silent --show-error --location --retry 2 --output "$2" "$1" ;;
        *) curl --fail --silent --show-error --location --retry 2 --output "$2" "$1" ;;
        esac
    elif command -v wget >/dev/null 2>&1; then
        wget -q -O "$2" "$1"
    else
        fail 'it needs curl or wget'
    fi || fail "the download of $1 failed"
}

check_platform() {
    [ "$(uname -s)" = Linux ] || fail "it runs on Linux only, and this is $(uname -s)"
    case $(uname -m) in
    x86_64 | amd64) ;;
    *) fail "there is no program for $(uname -m), only for x86_64; build it from source: https://github.com/countersign/countersign" ;;
    esac
    # getconf prints `glibc 2.36`. On systems without it, the first start of the program decides.
    if command -v getconf >/dev/null 2>&1; then
        libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc='another C library'
        case $libc in
        'glibc 2.'[0-9] | 'glibc 2.'[12][0-9] | 'glibc 2.3'[0-3] | 'another C library')
            fail "it needs glibc 2.34 or newer, and this system has $libc" ;;
        esac
    fi
}

# The script is read completely before it begins, so an incomplete download of it does nothing.
main() {
    check_platform
    for tool in cut mktemp sed sha256sum tar gzip; do
        command -v "$tool" >/dev/null 2>&1 || fail "it needs the command $tool"
    done
    [ -n "${HOME:-}" ] || fail 'HOME is not set'
    folder=$HOME/.local/bin
    target=$folder/countersign
    # pipx and uv put links there.
    [ ! -L "$target" ] || fail "$target is a link that another installer made; remove that installation first"

    work=$(mktemp -d)
    new=
    trap 'rm -rf "$work"; [ -z "$new" ] || rm -f "$new"' EXIT
    trap 'exit 1' HUP INT TERM
    download "$base/SHA256SUMS" "$work/SHA256SUMS"
    # The file also lists other downloads. A line is a checksum, two spaces and a name.
    line=$(sed -n "s/^\([0-9a-f]\{64\}\)  \(countersign-[0-9A-Za-z.+-]*-$platform\.tar\.gz\)\$/\1 \2/p" "$work/SHA256SUMS")
    case $line in
    '') fail "$base/SHA256SUMS names no tarball for $platform" ;;
    *'
'*) fail "$base/SHA256SUMS names several tarballs for $platform" ;;
    esac
    expected=${line%% *}
    tarball=${line#* }

    say "Downloading $base/$tarball"
    download "$base/$tarball" "$work/$tarball"
    actual=$(sha256sum "$work/$tarball" | cut -d ' ' -f 1)
    [ "$actual" = "$expected" ] || fail "the checksum of $tarball is $actual, but SHA256SUMS says $expected"

    # The new program replaces an old one at once, even while that runs.
    mkdir -p "$folder"
    new=$folder/.countersign.$$
    tar -xzOf "$work/$tarball" "${tarball%.tar.gz}/countersign" >"$new" || fail "$tarball cannot be unpacked"
    chmod 755 "$new"
    installed=$("$new" --version) || fail 'the program does not start on this system (it needs glibc 2.34 or newer)'
    mv -f "$new" "$target"
    new=

    say "Installed $installed as $target"
    found=$(command -v countersign || true)
    case :$PATH: in
    *":$folder:"*)
        [ "$found" = "$target" ] || say "Note: the command countersign starts another program, $found, because it comes first in PATH."
        say 'Run countersign to start the gateway, or countersign --help to see what it can do.' ;;
    *)
        say "$folder is not in PATH. Add this line to your shell's profile (such as ~/.profile), and open a new terminal:"
        # shellcheck disable=SC2016 # The user's shell expands it.
        say '  export PATH="$HOME/.local/bin:$PATH"' ;;
    esac
}

main
