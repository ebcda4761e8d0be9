# shellcheck shell=bash
# Sourced by the scripts that build: installs the packages that the build needs, if any is missing
# (Debian 12, Ubuntu 22.04 or 24.04; through sudo when not root).

packages=(
  build-essential ca-certificates ccache cmake git ninja-build pkg-config
  libbenchmark-dev libcli11-dev libgtest-dev libpcre2-dev libsentencepiece-dev libspdlog-dev
  libutf8proc-dev nlohmann-json3-dev
)

# cuda where there is a compiler for it, as CMakeLists.txt looks for one; else cpu.
default_preset() {
  if [ -n "${CUDACXX:-}" ] || command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    echo cuda
  else
    echo cpu
  fi
}

# Sets `preset` and `options` from a script's arguments: [PRESET] [-DVARIABLE=VALUE ...].
# shellcheck disable=SC2034  # the scripts use them
take_preset() {
  preset=$(default_preset)
  options=("$@")
  if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    preset=$1
    options=("${@:2}")
  fi
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "these packages are missing, and there is no sudo to install them: $missing" >&2
    exit 1
  fi
}

is_installed() {
  dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^ii'
}

# Debian 12 has a newer one beside its own 1.74. What there is, is known after apt-get update.
boost_package() {
  if apt-cache show libboost1.81-dev >/dev/null 2>&1; then
    echo libboost1.81-dev
  else
    echo libboost-dev
  fi
}

install_packages() {
  local missing=""
  local package
  for package in "${packages[@]}"; do
    if ! is_installed "$package"; then
      missing="$missing $package"
    fi
  done
  local boost=""
  if ! is_installed libboost1.81-dev && ! is_installed libboost-dev; then
    boost=boost
    missing="$missing libboost-dev"
  fi
  if [ -z "$missing" ]; then
    return
  fi
  if ! command -v apt-get >/dev/null; then
    echo "install the equivalents of these Debian packages first:$missing" >&2
    exit 1
  fi
  echo "installing:$missing" >&2
  as_root apt-get update -qq
  if [ -n "$boost" ]; then
    missing="${missing% *} $(boost_package)"
  fi
  # shellcheck disable=SC2086  # one word per package
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
