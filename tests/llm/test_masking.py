"""Secrets are hidden, ordinary lines are not touched."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.llm.masking import SECRET, mask

HEX40 = "0123456789abcdef0123456789abcdef01234567"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
SECRETS = {
    "password=hunter2 user=me": "hunter2",
    "PGPASSWORD=hunter2,x": "hunter2",
    "DB_PASS=hunter2": "hunter2",
    'config: {"password": "hun ter\\"2", "port": 1}': "hun ter\\\"2",
    "{'db_password': 'hunter2', 'a': 1}": "hunter2",
    'log: {\\"api_key\\": \\"hunter2\\", \\"b\\": 1}': "hunter2",
    "api-key: hunter2": "hunter2",
    "OPENAI_API_KEY=hunter2": "hunter2",
    "client_secret: hunter2": "hunter2",
    "Namespace(password='hunter2', rounds=3)": "hunter2",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "wJalrXUtnFEMI/K7MDENG",
    "using AKIAIOSFODNN7EXAMPLE now": "AKIAIOSFODNN7EXAMPLE",
    "HUGGING_FACE_HUB_TOKEN=abcdefgh": "abcdefgh",
    "login with hf_abcdefghijklmnopqrstuvwxyz0123": "hf_abcdef",
    "key sk-proj-abc123def456ghi789jkl": "sk-proj",
    "git clone https://oauth2:glpat-abcdefghij0123456789@git.example.com/x": "glpat-",
    "remote ghp_0123456789abcdefghij0123456789abcdef": "ghp_",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqr": "github_pat",
    "slack xoxb-123456789012-abcdefghij": "xoxb",
    "POST https://hooks.slack.com/services/T000/B000/XXXXXXXX": "T000",
    f"wandb: Appending key for api.wandb.ai to your netrc file: {HEX40}": HEX40,
    f"WANDB_KEY {HEX40}": HEX40,
    f"token is {JWT} ok": "eyJ",
    "Authorization: Bearer abc.def-123": "abc.def",
    "-H 'Authorization: Basic dXNlcjpwYXNz' -X GET": "dXNlcjpwYXNz",
    "'authorization': 'AWS4-HMAC-SHA256 Credential=a/b, Signature=c0ffee'": "c0ffee",
    "sent Bearer abcdefgh12345678": "abcdefgh",
    "Cookie: session=abc; id=5": "session=abc",
    '"Set-Cookie": "sid=abc; HttpOnly"': "sid=abc",
    "postgresql://user:p@ss:w0rd@db:5432/x": "ss:w0rd",
    "redis://:hunter2@cache:6379/0": "hunter2",
    "https://0123456789abcdef0123@github.com/x": "0123456789abcdef0123",
    "AccountName=x;AccountKey=abc/def+123==;EndpointSuffix=core": "abc/def",
    "https://x.blob.core.windows.net/c?sv=2022&sig=abc%2Fdef&se=1": "abc%2Fdef",
    "https://s3/b?X-Amz-Credential=AKIA/1&X-Amz-Signature=abcdef0123": "abcdef0123",
    "machine api.wandb.ai login user password hunter2": "hunter2",
    "srun train.py --api-key hunter2 --lr 1": "hunter2",
    "train.py --hub_token abcdefgh": "abcdefgh",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\ndef\n-----END RSA PRIVATE KEY-----\nnext": "MIIabc",
    "'-----BEGIN PRIVATE KEY-----\\nMIIabc\\n": "MIIabc",
    "AIzaSyA-0123456789abcdefghijklmnopqrstu": "AIzaSy",
}  # fmt: skip
PLAIN = [
    "tokens=4096 token_count: 12 password_hash_rounds=12 max_tokens: 2048 num_tokens=1.2B tokens/s: 5120",
    "pad_token='<|endoftext|>' eos_token: </s> bos_token=reserved_special_token_250 unk_token: <unk>, eos_token_id=2",
    "token: 5 next token: hello loss_per_token: 2.31 time/token: 1.5e-3",
    "AddedToken(\"<pad>\", rstrip=False), 'mask_token': '[MASK]', special tokens: 12",
    f"commit {HEX40} run 8f14e45f-ceea-4672-a3b1-000000000000 md5 d41d8cd98f00b204e9800998ecf8427e",
    f"wandb: git commit {HEX40}",
    "wandb: Run data is saved locally in /data/wandb/run-20240302_110847-abc12def",
    "wandb: Syncing run task-sk-large-2024 at https://wandb.ai/team/project/runs/abc12def",
    "Loading /data/secrets/tokenizer.model, secret sharing off, password auth disabled",
    "PWD=/workspace OLDPWD=/root pwd: /home/user",
    "password=None api_key: null secret=*** token=''",
    "http://10.0.0.1:8080/v1/models?limit=5 ssh://git@github.com/x.git s3://bucket/a@b",
    "[2024-03-02 11:08:47] iteration      120/  500000 | consumed samples:       122880 | lm loss: 6.81E+00 |",
    "10.1.2.3: NCCL INFO comm 0x7f12 rank 3 nranks 8 cudaDev 3 busId 3b000 - Init COMPLETE key_value=3 query_key: 64",
    "bearer of news: Bearer channels were reset; the author: Smith",
    "forward pass: 12 ms num_pass=3 bypass: on",
    "sk-learn 1.4, sklearn, risk-adjusted, task-0123456789012345678901",
]


@pytest.mark.parametrize("line", SECRETS)
def test_a_secret_is_hidden(line: str) -> None:
    masked = mask(line)
    assert SECRETS[line] not in masked and SECRET in masked
    assert mask(masked) == masked


@pytest.mark.parametrize("line", PLAIN)
def test_an_ordinary_line_is_not_touched(line: str) -> None:
    assert mask(line) == line


def test_what_stands_around_a_secret_stays() -> None:
    assert mask("password=hunter2, user=me") == f"password={SECRET}, user=me"
    assert mask('{"password": "a b", "port": 1}') == f'{{"password": "{SECRET}", "port": 1}}'
    assert mask("postgresql://user:pw@db:5432/x") == f"postgresql://user:{SECRET}@db:5432/x"
    assert mask("https://h/p?token=abcdef12345&step=3") == f"https://h/p?token={SECRET}&step=3"
    assert mask("-----BEGIN PRIVATE KEY-----\nab\n-----END PRIVATE KEY-----\nnext").endswith("-----\nnext")


_UNITS = [
    "password", "password=", 'password="', "password='a", 'password=\\"', "token_", "a_token", "api_key=a,", "://a:",
    "://", "a@", "eyJ", "eyJ-", "eyJaaaaaaaa.", "sk-", "sk-a", "hf_", "wandb", "wandb 0", "0", "a", "-", "_", " ", "\\",
    '"', "'", "=", ":", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "cookie:", "cookie: ", "authorization", "bearer ",
    "bearer a", "login a ", "--a-token ", "--token", "?sig=", "password=a&b", "secret=<secret>", "<secret>",
    "password: [", "xox", "=>", "\n",
]  # fmt: skip


@pytest.mark.parametrize("unit", _UNITS)
def test_time_is_linear_in_a_hostile_line(unit: str) -> None:
    text = unit * ((1 << 20) // len(unit))
    begin = time.monotonic()
    mask(text)
    assert time.monotonic() - begin < 5, "a line of 1 MiB; quadratic time would be hours"


_PIECES = st.one_of(
    st.sampled_from([*SECRETS, *PLAIN, *_UNITS, SECRET, "hunter2", "@h/", "&", ";", ", "]), st.text(max_size=5)
)


@given(st.lists(_PIECES, max_size=6))
def test_masking_twice_changes_nothing(pieces: list[str]) -> None:
    once = mask("".join(pieces))
    assert mask(once) == once


@given(st.text(alphabet="abc123XYZ-_/+!%$", min_size=8, max_size=40).filter(lambda s: s[0].isalnum()))
def test_no_password_survives_behind_its_name(password: str) -> None:
    for line in (
        f"password={password}",
        f'"api_key": "{password}"',
        f"--secret {password}",
        f"x://u:{password.replace('/', '')}@h",
    ):
        assert password not in mask(line) or password in ("***",)
