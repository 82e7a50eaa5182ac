"""Packs a binary of stator as a tarball, a wheel and a container image.

    pack.py BINARY ROOT FOLDER

ROOT is the image's root file system. `build` beside this file makes both and calls this.
Every time in the files is the Unix epoch (the wheel's is 1980, which is a zip's earliest), every
owner is root: equal binaries make equal files.
"""

import base64
import gzip
import hashlib
import io
import json
import pathlib
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

LEVEL = 6
DOCUMENTS = ["LICENSE", "README.md", "CHANGELOG.md"]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def main():
    binary, root, folder = map(pathlib.Path, sys.argv[1:])
    version = subprocess.check_output([binary, "--version"], text=True).split()[1]
    folder.mkdir(parents=True, exist_ok=True)
    files = [
        tarball(binary, folder, version),
        wheel(binary, folder, version),
        image(root, folder, version),
    ]
    sums = [f"{sha256(file.read_bytes())}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(sums))
    for file in files:
        print(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")


def tarball(binary, folder, version):
    """Everything in one folder, as people unpack it by hand."""
    name = f"stator-{version}-{platform.machine()}"
    members = [(f"{name}/stator", binary)]
    members += [(f"{name}/{document}", pathlib.Path(document)) for document in DOCUMENTS]
    file = folder / f"{name}.tar.gz"
    file.write_bytes(compressed(tar(members)))
    return file


def wheel(binary, folder, version):
    """The binary as a script, which pip puts on the PATH (PyPA's binary distribution format)."""
    tag = f"py3-none-{wheel_platform(binary)}"
    info = f"stator-{version}.dist-info"
    readme = pathlib.Path("README.md").read_text()
    metadata = (
        f"Metadata-Version: 2.1\nName: stator\nVersion: {version}\nLicense: Apache-2.0\n"
        "Summary: Serves large language models across fleets of GPUs\n"
        f"Description-Content-Type: text/markdown\n\n{readme}"
    )
    about = f"Wheel-Version: 1.0\nGenerator: stator\nRoot-Is-Purelib: false\nTag: {tag}\n"
    members = [
        (f"stator-{version}.data/scripts/stator", binary.read_bytes(), 0o755),
        (f"{info}/licenses/LICENSE", pathlib.Path("LICENSE").read_bytes(), 0o644),
        (f"{info}/METADATA", metadata.encode(), 0o644),
        (f"{info}/WHEEL", about.encode(), 0o644),
    ]
    record = [f"{path},sha256={urlsafe(data)},{len(data)}\n" for path, data, _ in members]
    record.append(f"{info}/RECORD,,\n")
    members.append((f"{info}/RECORD", "".join(record).encode(), 0o644))
    file = folder / f"stator-{version}-{tag}.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive:
        for path, data, mode in members:
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return file


def wheel_platform(binary):
    """The machines that the wheel fits: those with the C library that the binary asks for."""
    versions = re.findall(rb"GLIBC_2\.(\d+)", binary.read_bytes())
    if versions:
        return f"manylinux_2_{max(map(int, versions))}_{platform.machine()}"
    return re.sub(r"[-.]", "_", sysconfig.get_platform())


def image(root, folder, version):
    """An OCI image layout in one archive, of one layer."""
    members = [(str(path.relative_to(root)), path) for path in sorted(root.rglob("*"))]
    layer = tar(members)
    packed = compressed(layer)
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"User": "65532:65532", "Entrypoint": ["/stator"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(layer)]},
    }
    blobs = {}
    kind = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": blob(blobs, f"{kind}.config.v1+json", as_json(config)),
        "layers": [blob(blobs, f"{kind}.layer.v1.tar+gzip", packed)],
    }
    entry = blob(blobs, f"{kind}.manifest.v1+json", as_json(manifest))
    # Podman reads the first name, Docker's containerd the second.
    entry["annotations"] = {
        "org.opencontainers.image.ref.name": version,
        "io.containerd.image.name": f"docker.io/library/stator:{version}",
    }
    index = {"schemaVersion": 2, "manifests": [entry]}
    files = [("oci-layout", as_json({"imageLayoutVersion": "1.0.0"})), ("index.json", as_json(index))]
    files += [(f"blobs/sha256/{digest}", data) for digest, data in blobs.items()]
    file = folder / f"stator-{version}-{platform.machine()}.oci.tar"
    file.write_bytes(tar(files))
    return file


def blob(blobs, media_type, data):
    """Keeps a blob under its digest; returns the descriptor that points to it."""
    digest = sha256(data)
    blobs[digest] = data
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def tar(members):
    """A tar archive of (name, path or bytes)."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name, source in members:
            entry = tarfile.TarInfo(name)
            entry.mode = 0o644
            if isinstance(source, bytes):
                data = source
            elif source.is_dir():
                entry.type, entry.mode, data = tarfile.DIRTYPE, source.stat().st_mode & 0o7777, b""
            else:
                entry.mode, data = source.stat().st_mode & 0o7777, source.read_bytes()
            entry.size = len(data)
            out.addfile(entry, io.BytesIO(data))
    return archive.getvalue()


def compressed(data):
    return gzip.compress(data, LEVEL, mtime=0)


def as_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def urlsafe(data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return digest.rstrip(b"=").decode()


main()
