"""
Print the OpenAPI document: `python -m agentzip.web host > docs/openapi.json`.
"""

import json
import sys

from agentzip.web import host_document, inside_document

if __name__ == "__main__":
    documents = {"host": host_document, "inside": inside_document}
    if sys.argv[1:] not in [[name] for name in documents]:
        sys.exit(f"usage: python -m agentzip.web {'|'.join(documents)}")
    sys.stdout.write(json.dumps(documents[sys.argv[1]](), indent=2) + "\n")
