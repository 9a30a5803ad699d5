"""The lock before money and GPU time.

Guarantees: a job runs only on a tree whose contract suite has passed, in an interpreter that runs just that tree. It
fails closed, and every objection names the command that mends it. Imports only `pipeline.base` and `pipeline.records`.

Entry: `gate.require(job)` returns a permit or raises; `gate.examine` and `gate.judge` are its two halves. This package
re-exports nothing, so that the digests can be read without the libraries that verify signatures.

In order of reading:

    gate            the job, what stands against it, and the permit
    attestation     the signed result of the contract suite, verified before it is read
    digests         what the attestation is about: digests of the tree, code that none covers, forged bytecode
    environment     how the interpreter was started, where code comes from, what is installed
    kills           which broken promises the suite was seen to notice: what a paid job under CI needs
    engine_goldens  which golden sets of engines are recorded; shown by `gate status`, never decisive
"""
