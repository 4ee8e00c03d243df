"""The front of scheduler extenders: kube-scheduler's JSON over HTTP."""
