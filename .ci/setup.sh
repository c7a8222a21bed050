# Functions that install missing tools, for ./run and ./test. They print nothing if nothing is
# missing. The scripts source this file in the root of the repository.

say() { printf '%s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# as_root COMMAND...: runs a command as root, directly or by sudo. sudo asks for a password only if
# standard input is a terminal.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif ! have sudo; then return 1
    elif [ -t 0 ]; then sudo "$@"
    else sudo -n "$@" 2>/dev/null
    fi
}

# packages NAME...: installs packages of Debian or Ubuntu. Returns false if that fails.
packages() {
    have apt-get || { say "note: cannot install $*: this is neither Debian nor Ubuntu"; return 1; }
    say "installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive sh -c '
        apt-get -qq update; apt-get -qq install -y --no-install-recommends "$@" >/dev/null
    ' sh "$@" || { say "note: could not install $*; as root: apt-get install $*"; return 1; }
}

# Returns true if cargo has at least the version that is needed to build. rust-toolchain.toml pins
# the version, and rustup fetches exactly that version.
cargo_is_new() {
    version=$(cargo --version 2>/dev/null) || return 1
    minor=${version#cargo 1.}
    [ "${minor%%.*}" -ge 95 ] 2>/dev/null
}

# Installs the npm packages that the test of the page needs, in target/browser. Returns false if
# that fails.
setup_browser() {
    have npm || return 1
    asked=edge/daemon/tests/browser
    cmp -s "$asked/package-lock.json" target/browser/package-lock.json && return 0
    say "setting up $asked"
    rm -rf target/browser
    mkdir -p target/browser
    cp "$asked/package.json" "$asked/package-lock.json" target/browser/
    (cd target/browser && npm ci --no-audit --no-fund --silent >/dev/null) && return 0
    rm -rf target/browser
    return 1
}

# Installs a C compiler, rustup and the pinned toolchain if they are missing. Ends the script with
# exit code 3 if Slackline cannot be built.
setup_build() {
    cargo_bin=${CARGO_HOME:-${HOME:-}/.cargo}/bin
    ! [ -x "$cargo_bin/cargo" ] || PATH="$cargo_bin:$PATH"
    wanted=
    have cc || wanted="$wanted build-essential"
    # These packages are needed only to fetch cargo.
    if ! cargo_is_new; then
        have curl || wanted="$wanted curl"
        [ -e /etc/ssl/certs/ca-certificates.crt ] || wanted="$wanted ca-certificates"
    fi
    # shellcheck disable=SC2086  # a list of words
    [ -z "$wanted" ] || packages $wanted || true
    have cc || { say "error: cannot build: the C compiler cc, which links, is missing"; exit 3; }
    if ! cargo_is_new && ! have rustup; then
        say "installing rustup and the pinned toolchain"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs \
            | sh -s -- -y -q --profile minimal --default-toolchain none --no-modify-path || true
        PATH="$cargo_bin:$PATH"
    fi
    export PATH
    cargo_is_new || ! have rustup || rustup toolchain install || true
    cargo_is_new || { say "error: cannot build: Rust 1.95 could not be fetched"; exit 3; }
}
