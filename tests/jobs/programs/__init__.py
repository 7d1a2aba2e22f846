"""Data parts of training programs as users of other libraries write them, with the
import changed.

Each module has `prepare(folder)`, which writes its data; `loader(folder)`, which a rank
calls; and `ids(batch)`, what a batch was made of. `save(loader)` and `restore(loader,
state)` are those of its library, by default `state_dict` and `load_state_dict`.
`SAME_RANKS` says that its library resumes on as many ranks only, and `PEER` where its
import came from.
"""
