"""``streamworker doctor`` and ``streamworker repair``: what is checked, and what is repaired.

``doctor`` only reads; each check says what was found and what to do. ``repair`` plans steps from facts that
were read before, shows the plan and asks, and ``redisio.admin`` does them. No step harms a living worker,
and one that drops unread data is planned only if an option names it.
"""
