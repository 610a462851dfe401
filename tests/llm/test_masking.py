"""Secrets are hidden, ordinary lines are not touched."""

import math
import random
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logdoctor.llm.masking import SECRET, Masker, mask
from tests.at_once import at_once
from tests.soak import SOAKING

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
    "https://user@mail:pwd7@host/": "pwd7",
    "https://joe.x@uni:pwd7@host.edu/a": "pwd7",
    "postgres://u:p1/w2@db.host": "p1/w2",
    "mongodb+srv://u:p1/w2/x@c.mongodb.net/db?retry=1": "p1/w2/x",
    "redis://:p1/w2@cache": "p1/w2",
    "https://u:p1@s/w2@db.host/x": "s/w2",
    "https://u:p1#w2?d@h/x": "w2?d",
    "curl -u admin:hunter2secret https://x/": "hunter2",
    "curl -s -k -u 'admin:hun ter2' https://x/": "hun ter2",
    "curl --user admin:hunter2 https://x/": "hunter2",
    "curl --proxy-user=admin:hunter2 https://x/": "hunter2",
    "Command '['curl', '-u', 'admin:hunter2']' returned 22": "hunter2",
    "sshpass -p hunter2 ssh -p 2222 node": "hunter2",
    "sshpass -phunter2 ssh node": "hunter2",
    "mysql -u root -pS3cret db": "S3cret",
    "mysqldump -p'S3 cret' db": "S3 cret",
    "docker login -p x9": "x9",
    "sudo docker login -u bob -p tr0ub4dor reg.io": "tr0ub4dor",
    "ipmitool -I lanplus -H bmc -U ADMIN -P hunter2 power status": "hunter2",
    "redis-cli -a hunter2 ping": "hunter2",
    "PASS=hunter2": "hunter2",
    "export REGISTRY_PASS=correcthorse": "correcthorse",
    "{'user': 'bob', 'pass': 'hunter2'}": "hunter2",
    "the password is hunter2": "hunter2",
    "Your password was: hunter2.": "hunter2",
    "password is 'hun ter'": "hun ter",
    "password is correcthorse": "correcthorse",
    "admin password changed to hunter2": "hunter2",
    "the api key is abc123": "abc123",
    "invalid password 'hunter2'": "hunter2",
    "password: correct horse battery": "correct horse battery",
    "0: gpu-1: Password: correct horse battery!": "horse",
    "passphrase: correct horse, user: bob": "correct horse",
    "Passwort: geheim1 neu": "geheim1",
    "密码\uff1aabc123": "abc123",
    "api key: abc": "abc",
    "Incorrect API key provided: abc123": "abc123",
    'access key: "a b"': "a b",
    "secret key: wJalr/xx": "wJalr",
    "access token: abc123def": "abc123def",
    "OPENAI_API_KEY abcdef123456": "abcdef",
    "header is Token 9944b09199c62bcf9418ad846dd0e4bbdfc6ee4b": "9944b",
    "token=abcdefgh": "abcdefgh",
    "GET /x?token=abcdefgh&a=1": "abcdefgh",
    "token: abcdefghijklmnop": "abcdefgh",
    "Bearer abcdefghijklmnop": "abcdefgh",
    "auth=('bob', 'hunter2')": "hunter2",
    "dckr_pat_abcdefghijklmnopqrstuvwx123": "dckr_pat",
    "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": "SG.",
    "ATATT3xFfGF0abcdefghijklmnopqrstuvwx=1234": "ATATT",
    "r8_abcdefghijklmnopqrstuvwxyz0123456789ab": "r8_",
    "lsv2_pt_abcdefabcdefabcdef_123456": "lsv2_pt",
    "oss LTAI5tAbcdEfgh1234567890": "LTAI",
    "AGE-SECRET-KEY-1QQPQZABCDEFGH": "QQPQZ",
    "https://discord.com/api/webhooks/123/abcDEF": "abcDEF",
    "https://discordapp.com/api/v10/webhooks/123/abcDEF": "abcDEF",
    '{"auths": {"reg.io": {"auth": "dXNlcjpwYXNz"}}}': "dXNlcjpwYXNz",
    "Session('AKIAIOSFODNN7EXAMPLE', 'wJalrXUtnFEMIzK7MDENGzbPxRfiCYzEXAMPLEKE')": "wJalrXUtnFEMI",
    "tls.key: LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1JSWFiYw==": "LS0tLS1CRUdJTi",
    "value: REJfUEFTU1dPUkQ9aHVudGVyMjJ4": "REJfUEFTU1dPUkQ9",
    "password:\n  hunter2": "hunter2",
    "db_password: |\n    hunter2": "hunter2",
    "[rank3]: password:\n[rank3]:   hunter2": "hunter2",
    "machine h\n  login u\n  password hunter2\n": "hunter2",
    f"wandb: Paste an API key from your profile and hit enter:\n{HEX40}": HEX40,
    "api_key=abcdefgh1234567\nQ9zX7w rest": "Q9zX7w",
    "GET /x?password%3Dhunter2%26a=1": "hunter2",
    "pass\u200bword=hunter2": "hunter2",
    "lftp -u bob,hunter2 ftp://x": "hunter2",
    "openssl enc -aes-256-cbc -k hunter2 -in a": "hunter2",
    "ansible_become_pass: hunter2": "hunter2",
    "[rank3]: MIIEowIBAAKCAQEAaB3+cD5/eF7gH9iJkL1mN2oP3qR4sT5uV6wX7yZ8aB9cD0eF": "cD5",
    "it returned 8fK2mQ9xLw4TzR7vBn3J": "8fK2m",
    "Command '['mysqldump', '--password', 'Sommer2026!']' failed": "Sommer2026",
    'args: ["--api-key", "hunter2hunter"]': "hunter2",
    "auth = [('password', 'hunter2')]": "hunter2",
    'env: [{"name":"DB_PASSWORD","value":"hunter2"}]': "hunter2",
    "- name: DB_PASSWORD\n  value: hunter2": "hunter2",
    "<password>hunter2</password>": "hunter2",
    "<name>fs.s3a.secret.key</name><value>hunter2</value>": "hunter2",
    "fs.s3a.secret.key=hunter2": "hunter2",
    "Password for 'https://u@h': hunter2": "hunter2",
    "[sudo] password for a: hunter2": "hunter2",
    "keytool -storepass hunter2 -list": "hunter2",
    "openssl rsa -passin pass:hunter2 -in a": "hunter2",
    "password -> hunter2": "hunter2",
    "| password | hunter2 |": "hunter2",
    "pass\x1b[1mword=hunter2": "hunter2",
    "connect(password=b'hunter2', rounds=3)": "hunter2",
    'password=r"hunter2"': "hunter2",
    "password=u'hunter2'": "hunter2",
    "export DB_PASSWORD=$'hunter2'": "hunter2",
    "if password == hunter2": "hunter2",
    "pass\x1b[Kword\x1b(B\x1b[m=hunter2": "hunter2",
    "\x1b[38:5:1mpass\x1b[38:5:2mword\x1b[0m=hunter2": "hunter2",
    "pass\x1b]8;;http://x\x07word=hunter2": "hunter2",
    "&lowbar;api&lowbar;key&equals;hunter2": "hunter2",
    "p&#97;ssword&nbsp;=&nbsp;hunter2": "hunter2",
    "GET /x?password%09=%0Ahunter2": "hunter2",
    "passwords: ['a', 'hunter2']": "hunter2",
    'api_keys=["a1", "hunter2"]': "hunter2",
    "password2=hunter2 password[0]=a": "hunter2",
    "password[0]=hunter2": "hunter2",
    "newpass=hunter2 oldpass=a": "hunter2",
    "SSHPASS=hunter": "hunter",
    '{"Key":"DB_PASSWORD","Value":"hunter2"}': "hunter2",
    '<property name="password" value="hunter2"/>': "hunter2",
    "\u5bc6\u7801\u662fhunter2": "hunter2",
    "\u5bc6\u7801\u4e3a\uff1ahunter2": "hunter2",
    "curl -sSu bob:hunter2 https://x": "hunter2",
    "+ echo hunter2 | docker login --password-stdin reg.io": "hunter2",
    "echo 'root:hunter2' | chpasswd": "hunter2",
    "chpasswd <<< root:hunter2": "hunter2",
    "CREATE USER bob IDENTIFIED BY 'hunter2'": "hunter2",
    "SET PASSWORD FOR bob = 'hunter2'": "hunter2",
    "SET PASSWORD = PASSWORD('hunter2')": "hunter2",
    "password = $(echo hunter2)": "hunter2",
    f'{{"username":"bob","key":"{HEX40[:32]}"}}': HEX40[:32],
    f"KAGGLE_KEY={HEX40[:32]}": HEX40[:32],
    f"Using API key {HEX40[:32]}": HEX40[:32],
    "credentials = hunter2hunter2": "hunter2",
    "cred='hunter2hunter2'": "hunter2",
    "HTTPBasicAuth('bob', 'hunter2')": "hunter2",
    "[('authorization', 'Token hunter2')]": "hunter2",
    "x --user bob --pass hunter2": "hunter2",
    "plink -pw hunter2 bob@h": "hunter2",
    "requirepass hunter2hunter2": "hunter2",
    "bindpw hunter2hunter2": "hunter2",
    "db.example:5432:train:bob:hunter2": "hunter2",
    "connect to bob:hunter2hunter2@db.example.com": "hunter2",
    "htpasswd -b /etc/x bob hunter2": "hunter2",
    "vault login hunter2": "hunter2",
    "swanlab login -k hunter2": "hunter2",
    f"sessionid={HEX40[:32]}": HEX40[:32],
    f"JSESSIONID={HEX40[:32]}": HEX40[:32],
    "aws configure set aws_secret_access_key hunter2hunter2": "hunter2",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQdGBGab\n-----END PGP PRIVATE KEY BLOCK-----": "lQdGBGab",
    "machine h\n\tlogin u\n\tpassword\n\thunter2": "hunter2",
    "Password: \n\nhunter2": "hunter2",
    "passw\u00f8rd=hunter2 passwor\u0111=a passwor\u0256=b": "hunter2",
    "passwo\ua75bd\ua78ahunter2": "hunter2",
    "password\u2e40hunter2": "hunter2",
    "password\ufe30hunter2": "hunter2",
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
    "KeyError: 'token' KeyError: 'password' got an unexpected keyword argument 'api_key'",
    '  File "/opt/x/token.py", line 3, in read_token',
    "    def login(password: str, token: str) -> None:",
    "    return cls(token=token, revision=revision, max_tokens=max_tokens) + f(token=use_auth_token)",
    "token = Punctuation; token => category; a token is O(n**2)",
    "max_tokens=4096 tokens: 4096 pad_token=<pad> --max_token 4096 --pad-token <pad> next_token=abcdefgh",
    "unexpected token 'abc' at position 3; token 151643 is out of range; wrong token, commit abcdef1",
    "primary key: user_id, key: value, foreign key: abc, PRIMARY_KEY abc123def, EOS_TOKEN token_id12",
    "Access denied for user 'root'@'localhost' (using password: YES)",
    "bob@host's password: Permission denied, please try again.",
    "failed to read password: Input/output error",
    "password: not set",
    "password: required",
    "The password is incorrect: password is too short, the token is invalid, api key is missing",
    "HF_TOKEN is not set; WANDB_API_KEY is not configured; secret is mounted at /run; password is required",
    "api key: not set; private key: /home/u/.ssh/id_rsa; API key: missing",
    "invalid API key: connection refused",
    "Invalid access token: Request had invalid credentials",
    "failed to mount secret: context deadline exceeded",
    'secret "my-secret" not found',
    "PASS: test_one PASS=12 FAIL=3 pass=2 pass=forward pass=1/3 pass: backward",
    "Done. PASS=1 WARN=0 ERROR=0 SKIP=0",
    "docker run -u 1000:1000 -p 8080:80 nvcr.io/x",
    "ssh -p 2222 host; python -u train.py -p 3 -a b; sshpass -e ssh -p 2222 node; mkdir -p /data/x",
    "mysql -p db -P 3306; docker login reg.io && mkdir -p /data/x",
    "git+https://github.com/x/y.git@v1.0#egg=z https://unpkg.com/react@18.2/index.js http://h:8080/@fs/x@1",
    "docker://nvcr.io/nvidia/pytorch:24.01-py3@sha256:abcdef docker://ubuntu:22.04@sha256:abcdef",
    "ssh://git@github.com:22/x/y.git http://[fe80::1]:8080/x@y",
    "Bearer authentication failed; bearer token expired; Bearer realm=x",
    "Enter passphrase for key '/root/.ssh/id_rsa': ",
    "password authentication is enabled; token auth is off",
    " 45%|\u2588\u2588\u2588\u258d     | 9/20 [00:03<00:04, 2.5it/s] \u0448\u0430\u0433",
    "\u043f\u043e\u0442\u0435\u0440\u0438: 2.5 \u2014 \u9519\u8bef\uff1aCUDA",
    "loss\uff1a2.5, 100%20 of it, C:\\users\\x41, d&#39;accord",
    "tokens=['abcdefgh1', 'b'] tokens2=abcdefgh1 secrets: 12 passwords: {} api_keys: 3 bypass=abcdefgh1 multipass='a'",
    "\u5bc6\u7801\u662f\u9519\u8bef\u7684 \u5bc6\u7801\u4e3a\u7a7a",
    "echo hello | tee log; echo $TOKEN | docker login --password-stdin; curl -sSL https://x; identified by name 'x'",
    "tar -xvf a:b; name=password key: value, <property name='batch' value='12'/>",
    "https://discord.com/api/webhooks/123 SG.1 r8_x LTAI lsv2_ AGE-SECRET-KEY-",
    "NAME          TYPE     DATA   AGE\ndb-password   Opaque   1      3d\nuser   password   token",
    "Checking password ...... ok\npassword ..... failed\n  api_key    missing\nPassword...  it is wrong",
    "  --hf-token            Token for the hub\n  --pass 3 --pw 12 --num-pass x --max-token    4096",
    "  mask_token ............... <mask>\n  moe_token_dispatcher_type ...... alltoall\n  tokens ........ 4096",
    "\u2502 token \u2502     5 \u2502\n\u2503 tokens \u2503 4096 \u2503\ntokens    4096\ntoken     hello",
    "private key /etc/ssl/key1.pem; private key server1.pem; failed to mount secret db-creds-v2abc",
    f"credentials = default cred=None credentials: /opt/sa1.json session_id={HEX40[:32]} cache key {HEX40[:32]}",
    "rank:3@node-1.x python:3.11-slim1@sha256:ab | `A_SECRET` |  | of it | proxy_pass http://backend1:80;",
    '{"name": "step_12", "key": "0123456789abcdef0123456789abcdef"} sessionid=12',
]


@pytest.mark.parametrize("line", SECRETS)
def test_a_secret_is_hidden(line: str) -> None:
    masked = mask(line)
    assert SECRETS[line] not in masked and SECRET in masked
    assert mask(masked) == masked


@pytest.mark.parametrize("line", PLAIN)
def test_an_ordinary_line_is_not_touched(line: str) -> None:
    assert mask(line) == line


NAMES = ["password", "wandb_api_key", "hf_token", "client_secret", "AWS_SECRET_ACCESS_KEY", "db.password", "senha",
         "wachtwoord", "KAGGLE_KEY", "userpass"]  # fmt: skip
IN_WORDS = ["mot de passe", "parola d'ordine", "has\u0142o", "\ube44\ubc00\ubc88\ud638", "\u5bc6\u78bc", "api key"]
LAYOUTS = [
    "  {} ............................ {}", "[default0]:  {} ............ {}", "{}...........: {}", "{} = {}",
    "{}            = {}", "{}         : {}", "{}:             {}", '{}            = "{}"', "{}\t\t\t\t\t\t= {}",
    '"{}" :     "{}"', "\u2502 {}      \u2502 {} \u2502", "\u2503 {} \u2503 {} \u2503", "\u2551 {} \u2551 {} \u2551",
    "| {}     |      {} |",
    "**{}**: {}", "{} => {}", "{} <- '{}'", "{} \u2192 {}", "{} = decoded('{}')", "{} = f(g(a=\"{}\"))", "{}:\n  {}",
]  # fmt: skip
"""How a name and its value are laid out."""
OF_ONE_WORD = ["{}\t{}", "{}      {}", "[rank3]: {}      {}", "  '{}':          '{}',", "`{}`: `{}`",
               "--{}      {} --lr 1",
               "x --{} {}", "a: 1  {}      \"{}\"", "export {}={}"]  # fmt: skip
VALUES = [
    "[a-z]{8}",
    "[A-Za-z0-9]{11}a1",
    "[0-9a-f]{31}a",
    "[0-9a-f]{39}0",
    "[A-Za-z0-9]{20}x/9+[A-Za-z0-9]{16}",
    "[A-Z]{4}1a[!@#$%^]{3}z",
]


@pytest.mark.parametrize("layout", [*LAYOUTS, *OF_ONE_WORD])
@given(st.integers(0, 1 << 32))
@settings(max_examples=3)
def test_a_secret_is_hidden_however_it_is_laid_out(layout: str, seed: int) -> None:
    rng = random.Random(seed)
    for name in [*NAMES, *(IN_WORDS if layout in LAYOUTS else [])]:
        value = made(rng.choice(VALUES), rng)
        line = f"step 3\n{layout.format(name, value)}\nstep 4"
        masked = mask(line)
        assert value not in masked and masked.startswith("step 3\n") and masked.endswith("\nstep 4"), line
        assert mask(masked) == masked


FORMS = [
    "AKIA[0-9A-Z]{16}", "ASIA[0-9A-Z]{16}", "AIza[0-9A-Za-z_-]{35}", "ya29\\.[0-9A-Za-z_-]{60}",
    "GOCSPX-[0-9A-Za-z_-]{28}",
    "hf_[A-Za-z]{34}", "sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}", "sk-ant-api03-[A-Za-z0-9_-]{93}AA",
    "sk-or-v1-[0-9a-f]{64}", "gsk_[A-Za-z0-9]{52}", "r8_[A-Za-z0-9]{37}", "xai-[A-Za-z0-9]{80}", "pplx-[A-Za-z0-9]{48}",
    "nvapi-[A-Za-z0-9_-]{64}", "lsv2_pt_[0-9a-f]{32}_[0-9a-f]{10}", "pcsk_[A-Za-z0-9]{6}_[A-Za-z0-9]{63}",
    "tgp_v1_[A-Za-z0-9_-]{43}", "rpa_[A-Z0-9]{38}[a-z0-9]{6}", "tvly-[A-Za-z0-9]{32}", "KGAT_[0-9a-f]{32}",
    "ghp_[A-Za-z0-9]{36}", "gho_[A-Za-z0-9]{36}", "ghs_[A-Za-z0-9]{36}", "github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    "glpat-[0-9A-Za-z_-]{20}", "gldt-[0-9A-Za-z_-]{20}", "glrt-[0-9A-Za-z_-]{20}", "glptt-[0-9a-f]{40}",
    "glcbt-[0-9a-z]{1,5}_[0-9A-Za-z_-]{20}", "glft-[0-9A-Za-z_-]{20}", "npm_[A-Za-z0-9]{36}",
    "pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50}", "dckr_pat_[A-Za-z0-9_-]{27}", "ATATT3xFfGF0[A-Za-z0-9_-]{60}=[0-9A-F]{8}",
    "CCIPAT_[A-Za-z0-9]{22}_[0-9a-f]{40}", "bkua_[0-9a-f]{40}", "sqp_[0-9a-f]{40}", "squ_[0-9a-f]{40}",
    "pul-[0-9a-f]{40}",
    "[A-Za-z0-9]{14}\\.atlasv1\\.[A-Za-z0-9_-]{67}", "hvs\\.[A-Za-z0-9_-]{24}", "dp\\.pt\\.[A-Za-z0-9]{43}",
    "xoxb-[0-9]{12}-[0-9]{12}-[A-Za-z0-9]{24}", "xapp-1-A[A-Z0-9]{10}-[0-9]{13}-[0-9a-f]{64}",
    "[0-9]{9}:AA[A-Za-z0-9_-]{33}", "M[A-Za-z0-9]{23}\\.[A-Za-z0-9_-]{6}\\.[A-Za-z0-9_-]{27}",
    "SG\\.[A-Za-z0-9_-]{22}\\.[A-Za-z0-9_-]{43}", "SK[0-9a-f]{32}", "key-[0-9a-f]{32}", "sk_live_[A-Za-z0-9]{24}",
    "rk_live_[A-Za-z0-9]{24}", "whsec_[A-Za-z0-9]{32}", "sq0atp-[A-Za-z0-9_-]{22}", "shpat_[0-9a-f]{32}",
    "shpss_[0-9a-f]{32}", "lin_api_[A-Za-z0-9]{40}", "figd_[A-Za-z0-9_-]{40}", "ntn_[A-Za-z0-9]{46}",
    "secret_[A-Za-z0-9]{43}", "PMAK-[0-9a-f]{24}-[0-9a-f]{34}", "sntryu_[0-9a-f]{64}", "NRAK-[A-Z0-9]{27}",
    "NRII-[A-Za-z0-9_-]{32}", "glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}", "glc_eyJ[A-Za-z0-9]{60}", "dop_v1_[0-9a-f]{64}",
    "dapi[0-9a-f]{32}", "HRKU-[A-Za-z0-9_-]{60}", "sbp_[0-9a-f]{40}", "pscale_tkn_[A-Za-z0-9_-]{43}",
    "nfp_[A-Za-z0-9]{36}",
    "pnu_[a-z0-9]{36}", "fm2_[A-Za-z0-9]{100}", "LTAI[A-Za-z0-9]{20}", "AKID[A-Za-z0-9]{32}", "[A-Za-z0-9+/]{86}==",
    "AccountKey=[A-Za-z0-9+/]{86}==", "eyJhbGciOiJIUzI1NiJ9\\.eyJ[A-Za-z0-9_-]{40}\\.[A-Za-z0-9_-]{43}",
]  # fmt: skip
"""The forms in which providers say that their keys and tokens are made."""


def made(form: str, generator: random.Random) -> str:
    """A text of a form: of each class in it as many characters as it says, of equal chance."""

    def drawn(found: re.Match[str]) -> str:
        if found["escaped"]:
            return found["escaped"]
        members = re.sub(
            "(.)-(.)", lambda ends: "".join(map(chr, range(ord(ends[1]), ord(ends[2]) + 1))), found["members"]
        )
        return "".join(generator.choices(members, k=int(found["count"] or 1)))

    return re.sub(r"\[(?P<members>[^\]]+)\](?:\{(?:\d+,)?(?P<count>\d+)\})?|\\(?P<escaped>.)", drawn, form)


@pytest.mark.parametrize("form", FORMS)
@given(st.integers(0, 1 << 32))
@settings(max_examples=10)
def test_a_key_of_a_provider_is_hidden(form: str, seed: int) -> None:
    key = made(form, random.Random(seed))
    for line in (f"using {key} now", f"curl: (22) {key}", f"'{key}'", f"[rank0]: x={key}"):
        masked = mask(line)
        assert key not in masked and key[-16:] not in masked


@given(st.integers(0, 1 << 32), st.integers(24, 64))
@settings(derandomize=True)  # one in many thousands of random texts looks like words
def test_random_letters_and_digits_are_hidden_whatever_stands_before_them(seed: int, size: int) -> None:
    secret = made(f"[A-Za-z0-9]{{{size}}}", random.Random(seed))
    for line in (
        f"it says {secret}",
        f"{{'x': ['{secret}']}}",
        f"GET /a/{secret}/b",
        f"run_{secret}.log",
        f"x{secret}",
    ):
        assert secret[-16:] not in mask(line)


def test_names_of_programs_hashes_and_ids_are_not_random() -> None:
    text = (
        "torch.nn.parallel.DistributedDataParallel AutoModelForCausalLMWithValueHead CustomSeq2SeqTrainerForImages "
        "_ZN3c104cuda9SetDeviceEi _ZNK3c1010TensorImpl11storage_ptrEv GPU-a3b1799d-9f76-11ee-8c11-357ff71a1bfc "
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas "
        "/opt/conda/lib/python3.10/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py "
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 Donaudampfschifffahrtsgesellschaft "
        "events.out.tfevents.1709373527.gpu-cn-0713.12345.0 checkpoint-0120000-of-0500000 train-7d9f8b6c5-x2x4z"
    )
    assert mask(text) == text


WAYS = {
    "as it is": str,
    "JSON": lambda letter: f"\\u{ord(letter):04x}",
    "JSON in JSON": lambda letter: f"\\\\u{ord(letter):04X}",
    "Python": lambda letter: f"\\x{ord(letter):02x}",
    "a URL": lambda letter: f"%{ord(letter):02x}",
    "a URL in a URL": lambda letter: f"%25{ord(letter):02X}",
    "a URL in a URL in a URL": lambda letter: f"%2525{ord(letter):02X}",
    "HTML": lambda letter: f"&#{ord(letter)};",
    "HTML, hexadecimal": lambda letter: f"&#x{ord(letter):x};",
    "HTML, not ended": lambda letter: f"&#{ord(letter):07};"[:-1],
    "octal": lambda letter: f"\\{ord(letter):03o}",
    "Python, at length": lambda letter: f"\\U{ord(letter):08x}",
    "HTML in HTML": lambda letter: f"&amp;#{ord(letter)};",
    "full width": lambda letter: chr(ord(letter) + 0xFEE0),
    "another alphabet": lambda letter: letter.translate(str.maketrans("aeopcyis", "аеорсуіѕ")),  # noqa: RUF001
    "Greek": lambda letter: letter.translate(str.maketrans("aopik", "αορικ")),
    "mathematics": lambda letter: chr(0x1D41A + ord(letter) - ord("a")) if letter.islower() else letter,
    "a mark": lambda letter: f"{letter}\u0301",
    "no width": lambda letter: f"{letter}\u200b",
    "no width, escaped": lambda letter: f"{letter}\\u200b",
    "a filler": lambda letter: f"{letter}\u3164",
    "a tag": lambda letter: f"{letter}\U000e0061",
    "a zero byte": lambda letter: f"{letter}\0",
    "a colour": lambda letter: f"\x1b[1;31m{letter}\x1b[0m",
    "a colour of many": lambda letter: f"\x1b[38:5:1m{letter}\x1b(B",
    "an end of the line": lambda letter: f"{letter}\x1b[K",
    "a colour, escaped": lambda letter: f"\\x1b[1m{letter}",
}
"""Ways to write a letter of ASCII so that it reads the same."""


@given(st.data(), st.sampled_from(["password=", "api_key: ", '"client_secret": "', "postgres://bob:", "--hf-token "]))
@settings(max_examples=300)
def test_a_secret_is_hidden_however_its_name_is_written(data: st.DataObject, name: str) -> None:
    ways = data.draw(st.lists(st.sampled_from(sorted(WAYS)), min_size=len(name), max_size=len(name)))
    written = "".join(WAYS[way](letter) if letter != " " else " " for way, letter in zip(ways, name, strict=True))
    end = "@db.example.com/x" if "//" in name else ""
    masked = mask(f"step 3: {written}hunter2hunter2{end}")
    assert masked.startswith(f"step 3: {written}{SECRET}") and masked.endswith(end)


def test_a_line_that_comes_again_is_masked_again() -> None:
    text = "step 3 goes well\npassword=hunter2 user=me\nstep 3 goes well"
    for _ in range(2):
        assert Masker().mask_rest(text) == text.replace("hunter2", "<secret-1>")


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_secret_is_hidden_however_it_is_written_itself(way: str) -> None:
    key = "hf_abcdefghijklmnopqrstuvwxyz"
    written = "".join(map(WAYS[way], key))
    masked = mask(f"login with {written} ok")
    assert masked.endswith(f"{SECRET} ok") and WAYS[way]("b") not in masked
    masker = Masker()
    masked = masker.mask(f"password=a, {written}, password=b")
    assert written not in masked and masker.unmask(masked) == f"password=a, {written}, password=b"


def test_what_stands_around_a_secret_stays() -> None:
    assert (
        mask('{"u": "https:\\/\\/bob:pw@h.edu\\/a", "x": 1}')
        == f'{{"u": "https:\\/\\/bob:{SECRET}@h.edu\\/a", "x": 1}}'
    )
    assert mask("GET /x?password%253Dhunter2%2526a=1") == f"GET /x?password%253D{SECRET}%2526a=1"
    assert mask("\u043f\u0430\u0440\u043e\u200b\u043b\u044c=hunter2 \u2588\u2588 45%|") == (
        f"\u043f\u0430\u0440\u043e\u200b\u043b\u044c={SECRET} \u2588\u2588 45%|"
    )
    assert mask("password=hunter2, user=me") == f"password={SECRET}, user=me"
    assert mask('{"password": "a b", "port": 1}') == f'{{"password": "{SECRET}", "port": 1}}'
    assert mask("postgresql://user:pw@db:5432/x") == f"postgresql://user:{SECRET}@db:5432/x"
    assert mask("https://h/p?token=abcdef12345&step=3") == f"https://h/p?token={SECRET}&step=3"
    assert mask("https://user@mail:pw@h.edu/a@b") == f"https://user@mail:{SECRET}@h.edu/a@b"
    assert mask("postgres://u:p/w@db.host/x") == f"postgres://u:{SECRET}@db.host/x"
    assert mask("sshpass -p x9 ssh -p 2222 node") == f"sshpass -p {SECRET} ssh -p 2222 node"
    assert mask("password: a horse\nnext line") == f"password: {SECRET}\nnext line"
    assert mask("password: a horse, user=me") == f"password: {SECRET}, user=me"
    assert mask("password: a horse user: me") == f"password: {SECRET} user: me"
    assert mask("password: hunter2 refused") == f"password: {SECRET} refused", "a failure is diagnosis"
    assert mask("-----BEGIN PRIVATE KEY-----\nab\n-----END PRIVATE KEY-----\nnext").endswith("-----\nnext")


_UNITS = [
    "%25", "&amp;", "&#1", "\x1b[", "\x1b[1", "\\x1b[", "\\u200b", "\u200b", "\u0435=", "%3D", "pass\u200bword=a ",
    "password", "password=", 'password="', "password='a", 'password=\\"', "token_", "a_token", "api_key=a,", "://a:",
    "://", "a@", "eyJ", "eyJ-", "eyJaaaaaaaa.", "sk-", "sk-a", "hf_", "wandb", "wandb 0", "0", "a", "-", "_", " ", "\\",
    '"', "'", "=", ":", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "cookie:", "cookie: ", "authorization", "bearer ",
    "bearer a", "login a ", "--a-token ", "--token", "?sig=", "password=a&b", "secret=<secret>", "<secret>",
    "password: [", "xox", "=>", "\n",
    "://a@", "://a@b:", "://a:@", "://a:/@", "-p a ", "sshpass -p a ", "docker login ", "curl -u a:b ", " -u a:b",
    "password is ", "password is a ", "password: a ", "password: a", "password 'a", "api key: ", "api key: a ", " is ",
    "token 0a", "token 0", "PASS=", "A_KEY 1a ", "A_", "auth=('", "auth=('a', 'b", " set to ", "docker ", "bearer_",
    'password=["', "passwords: ['a', ", "password[0]", "echo ", "echo a | ", "identified with a ", "key: password ",
    "password ", "password\t", "password....", "password=f('", "password=$(", "password (", "a:1", "a:a1@b.c ", "key",
    "\x1b]", "\\x1b]a", "&a", "&lowbar", "password=b'", "curl -sSu a:b ", "set password for a", "\u5bc6\u7801\u662f",
]  # fmt: skip

_MORE_UNITS = [
    "a.", "a@", "a@a.", "1.", "1.1.1.1 ", "a:", ":", "::", "ff:", "gpu-1", "gpu-1: ", "gpu-1.", "0: ", "a1: \n", "\n",
    "node ", "node: a1 ", "nodes", "host", "a-[0,1", "a-[0-1] ", "[1,", "11:08:47 a", "a<5>", "a:1:1 [0] ", "://a1",
    "<secret-1>", "<secret-1", "<host-1>", "srun: error: a: task", "STEP 1 ON ", "Aa1" * 21 + "A ", "a.com ", "_",
    "a_1", "hostname=a ", "step1 ", "a kern: ", "a" * 300 + "1: ",
]  # fmt: skip


def grows_with_the_text(work: Callable[[str], object], unit: str, size: int) -> bool:
    """Whether 8 times as many units take less than 30 times the work: quadratic work would be 64 times as much.

    It is this process's own time that counts, the best of a few tries, so that a machine at work with other things
    does not matter.
    """

    def seconds(bytes_in_all: int) -> float:
        text = unit * max(1, bytes_in_all // len(unit))
        begin = time.process_time()
        work(text)
        return time.process_time() - begin

    small = large = math.inf
    for _ in range(6):
        small, large = min(small, seconds(size)), min(large, seconds(8 * size))
        if large < 30 * small + 0.005:
            return True
    return False


def test_the_measure_tells_quadratic_work_from_linear() -> None:
    assert grows_with_the_text(lambda text: sum(1 for _ in text), "ab", 1 << 14)
    assert not grows_with_the_text(lambda text: sum(1 for _ in text for _ in text), "ab", 1 << 8)


SIZE = 1 << (15 if SOAKING else 12)
_SOME = ("password=", 'password="', "://a:@", "eyJ-", "curl -u a:b ", "password is a ", "cookie: ", "<secret-1>", "ff:",
         "a-[0-1] ", "gpu-1: ", "\\", "%25", "&amp;", "\x1b[", "\\u200b", "\u0435=",
         "echo a | ", 'password=["', "password ", "password=f('", "password\t....")  # fmt: skip
"""One of each sort of pattern; `make soak` has room for all."""


@pytest.mark.more_in_soak
@pytest.mark.parametrize("unit", [*_UNITS, *_MORE_UNITS] if SOAKING else _SOME)
def test_time_is_linear_in_a_hostile_line(unit: str) -> None:
    """Of a `Masker` with all that it may hide, whose first step is what `mask` does."""
    text = unit * (4 * SIZE // len(unit))
    masker = Masker(True, True, ["gpu-cn-0713"])
    assert masker.unmask(masker.mask(text)) == text
    assert grows_with_the_text(lambda text: Masker(True, True, ["gpu-cn-0713"]).mask(text), unit, SIZE)


_AGAIN = ("curl -u a:b ", "<secret>", "password is a\n", "://a:@", "password=a&b")


@pytest.mark.more_in_soak
@pytest.mark.parametrize("unit", _AGAIN if SOAKING else _AGAIN[:2])
def test_time_of_many_passes_is_linear_too(unit: str) -> None:
    """`mask` looks again at lines in which it hid something."""
    assert grows_with_the_text(mask, unit, SIZE)


_PIECES = st.one_of(
    st.sampled_from([*SECRETS, *PLAIN, *_UNITS, SECRET, "hunter2", "@h/", "&", ";", ", "]), st.text(max_size=5)
)


@given(st.lists(_PIECES, max_size=6))
@example(['password=\\"""'])
@example(['password=\\"a""'])
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


SAID = [
    "0: gpu-cn-0713: RuntimeError: boo", "node: gpu-cn-0714", "srun: error: learnfair5121: task 3: Exited with 1",
    "slurmstepd: error: *** STEP 123.0 ON nid001234 CANCELLED AT 2024-01-01T00:00:00 ***",
    "frontier:1234:5678 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>",
    "The client socket has failed to connect to [::ffff:10.1.2.3]:29500",
    "nodelist gpu-cn-[0713-0720,0722] layers[0-3]",
    "Mar  2 11:08:47 dgx-07 kernel: NVRM: Xid (PCI:0000:3b:00): 79", "mail joe.x@uni.example.edu", "<host-1> <text-1>",
    "login1.hpc.uni.edu fe80::1:2", "HOSTNAME=taurus", "peer gpu-7.internal<50636>", "tcp://trn-head-0:29400",
]  # fmt: skip
_ANY = st.one_of(_PIECES, st.sampled_from([*SAID, *_MORE_UNITS, "<secret-", "1>", "<", ">", "email-1"]))


@given(st.lists(st.lists(_ANY, max_size=6), max_size=3), st.booleans(), st.booleans())
def test_what_was_masked_comes_back_as_it_was(texts: list[list[str]], hosts: bool, ips: bool) -> None:
    masker = Masker(hosts, ips, ["gpu-cn-0713", "taurus"])
    said = ["".join(pieces) for pieces in texts]
    masked = [masker.mask(text) for text in said]
    assert [masker.unmask(text) for text in masked] == said
    assert [masker.mask(text) for text in said] == masked or hosts  # a host may be told of later
    for before, after in zip(said, masked, strict=True):
        assert after.count("\n") == before.count("\n"), "a line stays a line"


def test_a_masker_hides_what_mask_hides_and_nothing_else() -> None:
    for line, secret in SECRETS.items():
        masked = Masker().mask(line)
        assert secret not in masked and re.search(r"<secret-\d+>", masked), line
        assert "PRIVATE KEY" in line or re.sub(r"<secret-\d+>", SECRET, masked) == mask(line), line
    for line in PLAIN:
        assert "git@" in line or Masker().mask(line) == line


def test_the_same_value_has_the_same_mark() -> None:
    masker = Masker(hosts=True, ips=True, names=["taurus"])
    assert masker.mask("password=hunter2 from 10.0.0.7") == "password=<secret-1> from <ip-1>"
    assert masker.mask('{"api_key": "hunter2", "secret": "b"}') == '{"api_key": "<secret-1>", "secret": "<secret-2>"}'
    assert masker.mask("[::ffff:10.0.0.7]:80 joe@uni.edu on taurus") == "[::ffff:<ip-1>]:80 <email-1> on <host-1>"
    assert masker.unmask("<secret-2>, <host-1>, <host-9>, <secret>") == "b, taurus, <host-9>, <secret>"
    assert Masker().mask("password=other") == "password=<secret-1>", "another masker knows nothing of it"


def test_marks_that_a_log_holds_stay_what_they_are() -> None:
    masker = Masker()
    assert masker.mask("<secret-1> password=hunter2") == "<text-1> password=<secret-1>"
    assert masker.unmask("<text-1> <secret-1>") == "<secret-1> hunter2"
    assert masker.unmask(masker.mask("password=<secret-1>")) == "password=<secret-1>"


def test_a_key_of_many_lines_keeps_its_lines() -> None:
    body = ["MIIEowIBAAKCAQEA" + "aB3+" * 12, "x/Yz09" + "QwErTy" * 9 + "AbC1"]
    text = "\n".join(["-----BEGIN PRIVATE KEY-----", *body, "-----END PRIVATE KEY-----", "next"])
    assert Masker().mask(text) == (
        "-----BEGIN PRIVATE KEY-----\n<secret-1>\n<secret-2>\n-----END PRIVATE KEY-----\nnext"
    )
    assert [Masker().mask(f"0: {line}") for line in body] == ["0: <secret-1>"] * 2, "without its beginning, too"
    assert Masker().mask("ab" * 32) == "ab" * 32, "a hash is none"


def test_nothing_is_hidden_when_it_is_off() -> None:
    masker = Masker(True, True, ["gpu-1"], secrets=False)
    assert (
        masker.mask("password=a <text-1> gpu-1")
        == "password=a <text-1> gpu-1"
        == masker.unmask("password=a <text-1> gpu-1")
    )


def test_many_threads_agree_on_marks() -> None:
    masker, text = Masker(), "\n".join(f"password=hunter{n}" for n in range(200))
    (masked,) = set(at_once(masker.mask, [text] * 4))
    assert masker.unmask(masked) == text
