# shellcheck shell=bash
# Sourced by the other scripts: `prepare [EXTRA]` makes .venv with this package (editable) in it.
# Quick when nothing changed. The same on Linux and Mac; needs Python >= 3.11 and, for MLX, a C++
# compiler. OMLX_PYTHON names the Python to use, OMLX_VENV another place than .venv.
# A script that is started with --help or -h ends here: it prints the comment at its head.

case ${1:-} in
  --help | -h)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
VENV=${OMLX_VENV:-.venv}
CONSTRAINTS=config/constraints.txt

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $1"; say "hint: $2"; exit 1; }

prepare() {
  local extra=${1:-}
  make_venv
  system_packages
  install_package "$extra"
}

# --- Python and the virtual environment ---

fits() {
  command -v "$1" >/dev/null 2>&1 &&
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
  local candidate
  if [ -n "${OMLX_PYTHON:-}" ]; then
    if ! fits "$OMLX_PYTHON"; then
      fail "OMLX_PYTHON=$OMLX_PYTHON is no Python >= 3.11 with venv and ensurepip" \
        "name another, or unset it"
    fi
    printf '%s\n' "$OMLX_PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python3.14; do
    if fits "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "no Python >= 3.11 with venv and ensurepip found" \
    "install one: brew install python (Mac), apt install python3 python3-venv (Debian, Ubuntu)"
}

make_venv() {
  if [ -x "$VENV/bin/python" ] && fits "$VENV/bin/python"; then return; fi
  local python
  python=$(find_python)
  say "Making $VENV with $("$python" --version) ..."
  "$python" -m venv --clear "$VENV"
}

# --- The package and what it needs, in the versions that were tested together. A stamp says for
# which pyproject.toml and constraints it was installed ---

install_package() {
  local extra=$1 wanted stamp
  wanted=$(cat pyproject.toml "$CONSTRAINTS" | cksum)
  stamp="$VENV/.installed${extra:+-$extra}"
  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
  say "Installing the package and what it needs into $VENV (the first time takes minutes) ..."
  if ! pip_install "$extra" --constraint "$CONSTRAINTS"; then
    say "warning: the versions of $CONSTRAINTS can't be installed, as pip says above. Trying others."
    say "hint: if pyproject.toml asks for other versions, scripts/lock writes the file anew"
    pip_install "$extra"
  fi
  printf '%s\n' "$wanted" | tee "$VENV/.installed" >"$stamp"
}

pip_install() {
  # Python compiles what is imported, of some hundred MB that are installed.
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "${@:2}" \
    --editable ".${1:+[$1]}" >&2
}

# --- Linux: a compiler (MLX compiles kernels at first use) and a fast BLAS for its CPU backend ---

system_packages() {
  if [ "$(uname -s)" != Linux ]; then return; fi
  local missing=()
  if ! command -v g++ >/dev/null; then missing+=(g++); fi
  if ! has_openblas; then missing+=(libopenblas0-pthread); fi
  if [ ${#missing[@]} -gt 0 ] && may_apt; then apt_install "${missing[@]}"; fi
  if ! command -v g++ >/dev/null; then
    say "warning: no g++, and MLX compiles its CPU kernels with it. Fix: apt install g++"
  fi
  if ! has_openblas; then
    say "note: no OpenBLAS: long prompts are read slower. Fix: apt install libopenblas0-pthread"
  fi
}

has_openblas() {
  "$VENV/bin/python" -c 'import ctypes; ctypes.CDLL("libopenblas.so.0")' 2>/dev/null
}

may_apt() {
  command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

apt_install() {
  say "Installing $* with apt-get ..."
  local as_root=()
  if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get -qq)
  # A stale package list is the usual reason to fail, so it is fetched only then.
  "${as_root[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 ||
    { "${as_root[@]}" update >/dev/null 2>&1 &&
      "${as_root[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1; } ||
    say "apt-get could not install $*"
}
