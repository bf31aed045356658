"""`python -m llama_eagle.cli`"""

from llama_eagle.cli import main

main()
