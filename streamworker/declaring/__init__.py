"""What a user says to an app, and what streamworker makes of it.

``callables`` reads what kind of function a decorator got, ``parameters`` what fills its parameters, and
``functions`` the rest of its annotations. The results are the plain values of ``specs``: workers and Spark's
driver read them, and nothing else of this folder. The other files each have what one decorator returns.

Declaring connects to nothing. What is wrong is refused when the user's module is imported.
"""
