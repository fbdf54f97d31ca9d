"""What a user says to an app, and what streamworker makes of it.

``callables`` reads what kind of function a decorator got, ``parameters`` what fills its parameters, and
``functions`` the rest of its annotations. The results are the plain values of ``specs``: workers and Spark's
driver read these, and call functions as ``parameters`` and ``middleware`` say. They need no other file here.

A program holds a ``stream`` and a ``table``. The ``registry`` of an app has all that was declared. ``data``,
``processors``, ``timers``, ``resources`` and ``pipelines`` have the functions that add to it; they are the
methods of ``App``.

Declaring connects to nothing. What is wrong is refused when the user's module is imported.
"""
