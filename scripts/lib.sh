# Shared by the scripts beside it (sourced, not run): where things lie, and installing what a suite needs.
#
# Everything that is installed goes into Debian's packages (as root only) or into ignored folders of the repository:
# target/, tests/.cache/, node_modules/.

set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"
cache=$repository/tests/.cache
mkdir -p "$cache"
export PATH="$PATH:$HOME/.cargo/bin"
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
# The program that all suites but Rust's own run. A relative path counts from the repository.
given=${COUNTERSIGN_BIN:-}
export COUNTERSIGN_BIN=${COUNTERSIGN_BIN:-${CARGO_TARGET_DIR:-$repository/target}/debug/countersign}

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }

# packages PACKAGE...: installs those that are missing, as root; elsewhere says what is missing and fails.
packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        warn "missing Debian packages: ${missing[*]} (apt-get install ${missing[*]})"
        return 1
    fi
    say "apt-get install ${missing[*]}"
    # One at a time: apt-get refuses to run beside itself.
    (
        flock 9
        if [ ! -e "$cache/apt-updated" ]; then
            apt-get update -q >"$cache/apt.log" 2>&1 || { tail -5 "$cache/apt.log" >&2; exit 1; }
            touch "$cache/apt-updated"
        fi
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >>"$cache/apt.log" 2>&1 ||
            { tail -20 "$cache/apt.log" >&2; exit 1; }
    ) 9>"$cache/apt.lock"
}

# need COMMAND PACKAGE...: installs the packages if the command is not there.
need() {
    local command=$1
    shift
    command -v "$command" >/dev/null || packages "$@"
}

# Debian's PostgreSQL, whose programs are not on the path.
need_postgresql() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || need initdb postgresql; }

# A stamp file says which list of dependencies is installed: stale FOLDER LIST, stamped FOLDER LIST.
stale() { [ "$(cat "$1/.installed" 2>/dev/null)" != "$(sha256sum <"$2")" ]; }
stamped() { sha256sum <"$2" >"$1/.installed"; }

# The Node that the conformance suite and a WebSocket in JavaScript need (22) may be newer than Debian's: npm carries it.
node_version=22.23.3
node_22() {
    need npm nodejs npm
    local machine
    case $(uname -m) in
    x86_64) machine=x64 ;;
    aarch64) machine=arm64 ;;
    *) warn "npm carries no Node for $(uname -m)"; return 1 ;;
    esac
    local home=$cache/node-$node_version bin=$cache/node-$node_version/node_modules/node-linux-$machine/bin
    if [ ! -x "$bin/node" ]; then
        say "Node $node_version into ${home#"$repository"/}"
        mkdir -p "$home"
        npm install --prefix "$home" --no-save --no-package-lock "node-linux-$machine@$node_version" >/dev/null
    fi
    node=$bin/node
}

# npm_packages FOLDER: what its lock file says, into its ignored node_modules.
npm_packages() {
    need npm nodejs npm
    mkdir -p "$1/node_modules"
    stale "$1/node_modules" "$1/package-lock.json" || return 0
    say "npm packages of $1"
    # The engine check asks npm's own Node, which is not the one that runs the tests.
    (cd "$1" && npm ci --loglevel=error --engine-strict=false >/dev/null)
    stamped "$1/node_modules" "$1/package-lock.json"
}

# venv NAME REQUIREMENTS: a virtual environment in tests/.cache; sets $python.
venv() {
    need python3 python3 python3-venv
    local home=$cache/venv-$1
    python=$home/bin/python
    if [ ! -x "$python" ] || ! "$python" -c '' 2>/dev/null; then
        # Debian's python3 has the venv module but not what it needs to make one.
        python3 -c 'import ensurepip' 2>/dev/null || packages python3-venv
        rm -rf "$home"
        python3 -m venv "$home"
    fi
    stale "$home" "$2" || return 0
    say "Python packages of $2"
    "$python" -m pip install --quiet --disable-pip-version-check -r "$2"
    stamped "$home" "$2"
}

# The debug build, unless somebody named a program to test or it was just made.
debug_build() {
    [ -z "$given" ] || return 0
    need cc build-essential
    # With the tests, although only the program is wanted: by itself its dependencies would have other features, and be
    # built once more.
    cargo build --locked --quiet --workspace --bins
    given=$COUNTERSIGN_BIN
}
