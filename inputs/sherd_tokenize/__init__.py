"""Texts and conversations to token files. From the bottom: errors, sources (files to records), records (records to documents), model
(tokenizer and its special tokens), template (conversations to text), encoder (documents to ids), output, report, command."""
