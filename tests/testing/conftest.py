"""What users' tests do, on the server in memory and on a real one."""

from tests.fundamentals import conftest

url = conftest.redis_url
