"""An object store as `moto` stands in for one: a certificate for it, the server, and what is in it.

    store.py certificate FOLDER        writes cert.pem and key.pem, of 127.0.0.1
    store.py serve FOLDER PORT         serves https on that port and http on another, prints it, and ends with its input
    store.py extension HOME            puts DuckDB's extension `httpfs` where its program looks for it
    store.py held ADDRESS PID          prints the most bytes that a process's pool held at the end of a minute, by all files in the bucket
"""
import datetime
import ipaddress
import os
import pathlib
import shutil
import sys
import threading

BUCKET = "fleet"


def certificate(folder):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    signed = builder.add_extension(address, False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(signed.public_bytes(pem))
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(text)


def serve(folder, port):
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    identity = (str(folder / "cert.pem"), str(folder / "key.pem"))
    secure = make_server("127.0.0.1", port, app, threaded=True, ssl_context=identity)
    plain = make_server("127.0.0.1", 0, app, threaded=True)
    for server in (secure, plain):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{plain.port}", region_name="us-east-1").create_bucket(Bucket=BUCKET)
    print(plain.port, flush=True)
    sys.stdin.read()


def httpfs():
    import duckdb_extension_httpfs

    (found,) = pathlib.Path(duckdb_extension_httpfs.__file__).parent.rglob("httpfs.duckdb_extension")
    return found


def extension(home):
    import duckdb

    found = httpfs()
    (platform,) = duckdb.sql("pragma platform").fetchone()
    to = home / ".duckdb/extensions" / f"v{duckdb.__version__}" / platform
    os.makedirs(to)
    shutil.copy(found, to)


def held(address, pid):
    import duckdb

    connection = duckdb.connect()
    connection.load_extension(str(httpfs()))
    key = f"key_id 'a', secret 'b', region 'us-east-1', endpoint '{address}', use_ssl false, url_style 'path'"
    connection.sql(f"create secret (type s3, {key})")
    rows = connection.execute(
        f"select max(live_bytes) from read_parquet('s3://{BUCKET}/**/device_minute/**/*.parquet') where pid = ? and layer = 'pool'",
        [int(pid)],
    )
    print(rows.fetchone()[0])


work, where = sys.argv[1], sys.argv[2]
if work == "serve":
    serve(pathlib.Path(where), int(sys.argv[3]))
elif work == "held":
    held(where, sys.argv[3])
else:
    {"certificate": certificate, "extension": extension}[work](pathlib.Path(where))
