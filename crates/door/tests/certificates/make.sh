#!/bin/sh
# Makes the certificates of the tests, which are valid for a hundred years.
set -eu
cd "$(dirname "$0")"
new_key() { openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt; }
days=36500

new_key >roots.key
openssl req -x509 -new -key roots.key -subj "/CN=test root" -days $days -out roots.pem
for name in server client; do
    new_key >$name.key
    openssl req -new -key $name.key -subj "/CN=localhost" -addext "subjectAltName=DNS:localhost" |
        openssl x509 -req -CA roots.pem -CAkey roots.key -copy_extensions copy -days $days -out $name.pem
done
# Without extensions the certificate is of version 1.
new_key >client_version_1.key
openssl req -new -key client_version_1.key -subj "/CN=client" |
    openssl x509 -req -CA roots.pem -CAkey roots.key -set_serial 7 -days $days -out client_version_1.pem
new_key >client_self_signed.key
openssl req -x509 -new -key client_self_signed.key -subj "/CN=alone" -days $days -out client_self_signed.pem
# The same names as in the roots, and another key, which is not trusted.
new_key >forged_roots.key
openssl req -x509 -new -key forged_roots.key -subj "/CN=test root" -days $days -out forged_roots.pem
openssl req -new -key client_version_1.key -subj "/CN=client" |
    openssl x509 -req -CA forged_roots.pem -CAkey forged_roots.key -set_serial 7 -days $days -out client_forged.pem
openssl req -new -key client_version_1.key -subj "/CN=client" |
    openssl x509 -req -CA roots.pem -CAkey roots.key -set_serial 7 -days -1 -out client_expired.pem
openssl pkcs8 -topk8 -in server.key -passout pass:test -out server_encrypted.key
openssl ec -in server.key -aes128 -passout pass:test -out server_encrypted_sec1.key
rm -f roots.key forged_roots.* *.srl
