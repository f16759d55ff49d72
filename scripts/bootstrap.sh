#!/usr/bin/env bash
# Checks, and as root on Debian installs, the system packages that the checkout needs.
#
#   scripts/bootstrap.sh           what building and running needs; missing means stop
#   scripts/bootstrap.sh --null    only that /dev/null is a device
#   scripts/bootstrap.sh --tests   also the programs that the tests use as targets; missing is told,
#                                  and the tests that need them skip with that reason
#
# Looks first and returns at once when everything is there, so that every make target can call it.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'bootstrap: %s\n' "$*" >&2; }

# In an image made without device nodes the first redirection makes /dev/null a plain file.  It then
# keeps what programs write to it, and the next one reads that as its input: cargo asks rustc about
# its target with /dev/null as the program to compile, and fails on the last warning of another.
require_null() {
    [ -c /dev/null ] && return 0
    if [ "$(id -u)" = 0 ] && rm -f /dev/null && mknod -m 666 /dev/null c 1 3; then
        say "/dev/null was no device; made it anew"
        return 0
    fi
    say "/dev/null is no device; as root: rm -f /dev/null && mknod -m 666 /dev/null c 1 3"
    exit 1
}

# A Python that can make virtual environments.  `python3` may be a shim of some version manager, or
# older than we need, so each candidate has to prove itself; the first good one is printed.
find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
            >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

has_compiler() {
    local program status=0
    command -v cc >/dev/null || return 1
    program=$(mktemp)  # As root nothing is ever given /dev/null as the name of its output.
    printf '#include <stdio.h>\n#include <linux/userfaultfd.h>\nint main(void){return 0;}\n' |
        cc -static -x c -o "$program" - 2>/dev/null || status=1
    rm -f "$program"
    return "$status"
}

has_program() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }

apt_updated=no
apt_install() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        return 1
    fi
    local options=(-qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    export DEBIAN_FRONTEND=noninteractive
    if [ "$apt_updated" = no ]; then
        apt-get "${options[@]}" update </dev/null >/dev/null 2>&1 || say "apt-get update failed"
        apt_updated=yes
    fi
    say "installing $*"
    apt-get "${options[@]}" install -y --no-install-recommends "$@" </dev/null >/dev/null 2>&1
}

require_python() {
    find_python >/dev/null && return 0
    apt_install python3 python3-venv || true
    find_python >/dev/null && return 0
    say "Python 3.11 or newer with venv is needed; on Debian 12: apt-get install python3-venv"
    exit 1
}

require_compiler() {
    has_compiler && return 0
    apt_install gcc libc6-dev || true
    has_compiler && return 0
    say "a C compiler with static libc is needed; on Debian: apt-get install gcc libc6-dev"
    exit 1
}

# Debian's own cargo is older than the edition used here, and a toolchain installer is the user's
# choice to run; so this one is only checked.
require_cargo() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null; then
        say "no cargo found; install Rust $wanted or newer with rustup (rustup.rs):"
        say "  rustup toolchain install stable --profile default"
        say "then run the same make command again"
        exit 1
    fi
    found=$(cargo --version 2>/dev/null | cut -d' ' -f2) || found=0
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        say "Rust $wanted or newer is needed, cargo says $found; with rustup: rustup update stable"
        exit 1
    fi
}

# One program that tests use as a target: PROGRAM PACKAGE.
want_program() {
    has_program "$1" && return 0
    apt_install "$2" || true
    has_program "$1" || say "optional: $1 is missing (package $2); tests that need it will skip"
}

case "${1:-}" in
    --find-python)
        find_python
        exit
        ;;
    "" | --null | --tests) ;;
    *)
        say "usage: scripts/bootstrap.sh [--null | --tests | --find-python]"
        exit 2
        ;;
esac

require_null
if [ "${1:-}" = --null ]; then
    exit
fi
require_cargo  # First of these: it is the one thing that nothing here can mend.
require_python
require_compiler
if [ "${1:-}" = --tests ]; then
    want_program bwrap bubblewrap
    want_program runc runc
    want_program strace strace
    want_program node nodejs
    want_program chromium chromium
fi
