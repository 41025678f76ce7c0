"""Packaging of specdec. Tool settings are in pyproject.toml."""

import pathlib

import setuptools

README = pathlib.Path(__file__).parent / "README.md"

CONFIGS = {"specdec.configs.t5": "configs/t5", "specdec.configs.paper": "configs/paper"}
GIN = {f"specdec.gin.{folder.name}": f"gin/{folder.name}"
       for folder in sorted((pathlib.Path(__file__).parent / "gin").iterdir())}

PLOTS = ["matplotlib>=3.8"]
# importlib_resources: TensorFlow Datasets imports it and does not say so.
SEQIO = ["seqio>=0.0.20", "sacrebleu>=2.4", "rouge-score>=0.1.2", "importlib_resources"]
# The site; ruff sets its signatures. All are small, so that the suite builds it.
DOCS = ["mkdocs-material>=9.5,<10", "mkdocstrings[python]>=0.27", "ruff>=0.8"]
HF = ["safetensors>=0.5", "tokenizers>=0.20", "huggingface_hub>=0.30"]

# torch is pinned: the tests compare with its numbers, and do not chase its newest release.
TEST = [
    "pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6", "scipy>=1.11", "optax>=0.2.4",
    "sacrebleu>=2.4", "transformers>=5", "torch==2.13.0",
    "pytest-cov>=6", "ruff>=0.8", "import-linter>=2", "pre-commit>=4",
    "nbclient>=0.10", "ipykernel>=6.29",
    # With a Node.js of its own from the package index. Pinned: newer ones find more.
    "pyright[nodejs]==1.1.414",
    # The TPU's compiler, for programs that are read and never run.
    "libtpu>=0.0.40; sys_platform == 'linux' and platform_machine == 'x86_64'",
    *HF, *PLOTS, *SEQIO, *DOCS,
]

setuptools.setup(
    name="specdec-jax",
    version="0.1.0",
    description="Lossless speculative decoding of T5 models on JAX and Flax",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # Size tables, the paper's numbers and gin files go along as data, as if they stood in the
    # package.
    packages=[*setuptools.find_packages(include=["specdec", "specdec.*"]), *CONFIGS, *GIN],
    package_dir=CONFIGS | GIN,
    package_data={"specdec": ["assets/**/*"], **{name: ["*.json"] for name in CONFIGS},
                  **{name: ["*.gin"] for name in GIN}},
    include_package_data=False,
    install_requires=[
        "jax>=0.10",
        "flax>=0.12",
        "orbax-checkpoint>=0.11",
        "absl-py>=2.1",
        "gin-config>=0.5",
        "sentencepiece>=0.2",
        "tensorstore>=0.1.71",
        "ml_dtypes>=0.5",
        "numpy>=2.0",
        "rich>=13",
    ],
    extras_require={
        "tpu": ["jax[tpu]>=0.10"],
        "gpu": ["jax[cuda12]>=0.10"],
        "seqio": SEQIO,
        "hf": HF,
        "torch": ["torch>=2.6"],
        "plots": PLOTS,
        "docs": DOCS,
        "bench": ["torch>=2.6", "transformers>=4.50", "ctranslate2>=4.5"],
        "train": ["optax>=0.2.4", "sacrebleu>=2.4"],
        "test": TEST,
    },
    entry_points={"console_scripts": ["specdec = specdec.cli.main:run"]},
    classifiers=[
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
