//! Files for the tests of the configuration.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

/// Writes a certificate with its key (`cert.pem`, `tls.key`) and a key of stored tokens (`token.key`) into the folder.
pub(crate) fn write_usable_files(folder: &Path) {
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-subj", "/CN=Us", "-keyout", "tls.key", "-out", "cert.pem"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let key = folder.join("token.key");
    fs::write(&key, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
}
