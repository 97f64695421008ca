"""Events as the JSON of OpenAI's API."""
