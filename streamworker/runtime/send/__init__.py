"""How producers send records, and how each send is confirmed.

A record is encoded, gets a partition by its key, and waits in the lane of that partition until a round trip
takes it with others. A send returns when Redis has answered. Appends of a lane are numbered, so that one
without an answer is sent again and written once; records of one key stay in the order of their sends.
"""
