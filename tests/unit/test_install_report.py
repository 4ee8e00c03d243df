"""What an installation tells people."""

from nodeplug.install.deployment import Deployment
from nodeplug.install.report import Report


def test_report_names_what_changed_and_counts_the_rest() -> None:
    report = Report(created=["/opt/cni/bin/a", "/opt/cni/bin/b"], unchanged=["/x", "/y"], kept=["/z (still mounted)"])
    assert str(report) == "created /opt/cni/bin/a, /opt/cni/bin/b; kept /z (still mounted); 2 unchanged"


def test_report_of_nothing_says_so() -> None:
    assert str(Report()) == "nothing to install"


def test_deployment_says_which_entrypoints_and_why() -> None:
    done = Deployment(Report(removed=["/opt/cni/bin/old"]), "native", "compiled with cc")
    assert str(done) == "entrypoints: native (compiled with cc): removed /opt/cni/bin/old"
