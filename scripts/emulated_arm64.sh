#!/usr/bin/env bash
# An arm64 Python under qemu that can play the sandbox's sessions: scripts/emulated_arm64.sh DIR, on Debian 12, x86-64.
# Nothing is installed: packages are unpacked below DIR. Then: python -m benchmarks.sessions --emulated DIR/python
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
mkdir -p "$1"
dir="$(cd "$1" && pwd)"
mkdir -p "$dir"/{debs,lists/partial,cache/archives/partial,root,qemu,wheels,site}

cd "$dir/debs"
apt-get download qemu-user-static
dpkg -x qemu-user-static_*.deb "$dir/qemu"
rm qemu-user-static_*.deb
arm64=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists="$dir/lists" -o Dir::Cache="$dir/cache")
apt-get "${arm64[@]}" -o Debug::NoLocking=1 update
apt-get "${arm64[@]}" download python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 \
    libstdc++6 zlib1g libexpat1 libffi8 libssl3 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1
for package in *.deb; do dpkg -x "$package" "$dir/root"; done

for package in wasmtime msgspec blake3 platformdirs; do
    "$here/.venv/bin/python" -m pip download --no-deps --only-binary :all: --python-version 3.11 \
        --platform manylinux2014_aarch64 -d "$dir/wheels" "$(grep "^$package==" "$here/constraints.txt")"
done
for wheel in "$dir"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$dir/site"; done

cat > "$dir/python" <<END
#!/bin/sh
exec $dir/qemu/usr/bin/qemu-aarch64-static -L $dir/root -0 $dir/python -E PYTHONHOME=$dir/root/usr \\
    -E PYTHONPATH=$dir/site:$here -E PYTHONDONTWRITEBYTECODE=1 $dir/root/usr/bin/python3.11 "\$@"
END
chmod +x "$dir/python"
"$dir/python" -c 'import platform, wasmtime; print("ready:", platform.machine())'
