//! Random bytes from the kernel.

use std::io;

/// Fills an array from the kernel's generator (`getrandom(2)`), which is seeded before any service starts.
///
/// # Errors
/// As the call.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0_u8; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        // SAFETY: `rest` is writable for its length.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match got {
            1.. => filled += got as usize,
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_draws_differ() {
        assert_ne!(super::bytes::<32>().expect("getrandom"), super::bytes::<32>().expect("getrandom"));
    }
}
