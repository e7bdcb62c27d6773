"""The peers that get an environment of their own: versions and licences. Values only.

Nothing of them is copied or shipped. They are installed from the package index that pip uses, and
run on this machine's own address.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Build:
    """A CMake project inside the source archive of a package, and the program that is wanted."""

    folder: str
    program: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pins:
    """What is installed for one peer.

    `requirements` come with what they need themselves; the package itself comes without, because
    what it asks for beyond them (vision, audio, a web page) is not used here. With `build` not the
    package is installed, but a program built from its source. `version` is the server's.
    """

    package: str
    release: str
    version: str
    licence: str
    requirements: tuple[str, ...] = ()
    build: Build | None = None

    @property
    def title(self) -> str:
        return f"{self.package} {self.release}"


VLLM_MLX = Pins(
    package="vllm-mlx",
    release="0.6.0",
    version="0.6.0",
    licence="Apache-2.0",
    requirements=(
        "mlx[cpu]==0.32.4; sys_platform == 'linux'",
        "mlx==0.32.4; sys_platform == 'darwin'",
        "mlx-lm==0.31.3",
        "transformers==5.23.0",
        "fastapi==0.165.0",
        "uvicorn==0.54.0",
        "python-multipart==0.0.34",
        "psutil==7.2.2",
        "requests==2.34.2",
        "jsonschema==4.26.0",
        "prometheus-client==0.26.0",
    ),
)

# The package wraps llama.cpp's library and has a server of its own, one request at a time. What is
# measured is llama.cpp's server, whose source comes along: built as its users do, for this machine.
LLAMA_CPP = Pins(
    package="llama-cpp-python",
    release="0.3.36",
    version="0.5.0-dev",
    licence="MIT, as llama.cpp itself",
    requirements=("cmake==4.4.4", "ninja==1.13.2"),
    build=Build(
        folder="vendor/llama.cpp",
        program="llama-server",
        options=(
            "-DCMAKE_BUILD_TYPE=Release",
            "-DBUILD_SHARED_LIBS=OFF",
            "-DGGML_NATIVE=ON",
            "-DLLAMA_BUILD_EXAMPLES=OFF",
            "-DLLAMA_BUILD_TESTS=OFF",
            "-DLLAMA_BUILD_UI=OFF",
            "-DLLAMA_OPENSSL=OFF",
        ),
    ),
)
