"""How producers send records, and how each send is confirmed."""
