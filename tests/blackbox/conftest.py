"""Failed assertions of the shared checks say what they compared."""

import pytest

pytest.register_assert_rewrite("support.answers", "support.legal")
