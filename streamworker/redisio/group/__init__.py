"""What the workers of one group share: membership, control stream, locks, loads and readers.

Effects of the core become calls here, and their answers become events. The truth is in the document (or the
entries of another protocol) and in the locks; the control stream only makes news quick. A lock changes its
owner by a script alone, which raises the epoch, and a late commit of the former owner is refused by it.
"""
