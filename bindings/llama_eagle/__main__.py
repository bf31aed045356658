"""`python -m llama_eagle`"""

from llama_eagle.cli import main

main()
