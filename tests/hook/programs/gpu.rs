// SPDX-License-Identifier: Apache-2.0
// What any Rust program is to the loader: extern functions bound as data, never through a PLT.
use std::os::raw::{c_int, c_void};

#[link(name = "amdhip64")]
extern "C" {
    fn hipMalloc(pointer: *mut *mut c_void, size: usize) -> c_int;
}

fn main() {
    for mib in std::env::args().skip(1) {
        let mut pointer = std::ptr::null_mut();
        let size = mib.parse::<usize>().expect("MiB") << 20;
        println!("malloc {}", unsafe { hipMalloc(&mut pointer, size) });
    }
}
