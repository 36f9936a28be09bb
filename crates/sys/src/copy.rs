//! Copying bytes to where nobody looks for them soon.
//!
//! Not here: storing what is to outlive a power cut (`mapped`).

/// From so many bytes on it pays: less is mostly waiting for what is on its way.
const PAYS_BYTES: usize = 1 << 10;

/// Copies bytes, past the caches where that is possible: what is written is not read from memory first, and what the caches
/// hold stays there.
///
/// # Panics
/// If there are not as many at either side.
pub fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "as many are copied as there is room for");
    if from.len() < PAYS_BYTES {
        return to.copy_from_slice(from);
    }
    stream(to, from);
}

#[cfg(target_arch = "x86_64")]
fn stream(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    // SAFETY: every pattern of bytes is one of these.
    let (head, middle, tail) = unsafe { to.align_to_mut::<__m128i>() };
    let (first, rest) = from.split_at(head.len());
    let (blocks, last) = rest.as_chunks::<16>();
    head.copy_from_slice(first);
    tail.copy_from_slice(last);
    for (place, block) in middle.iter_mut().zip(blocks) {
        // SAFETY: 16 bytes are read at any address; the place is 16 bytes, aligned to that, and borrowed for writing.
        unsafe { _mm_stream_si128(place, _mm_loadu_si128(block.as_ptr().cast())) };
    }
    // SAFETY: a fence; every such machine has it. What other threads see next is what was written.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::copy_past_caches;

    #[test]
    fn all_bytes_arrive_and_no_others_change() {
        let from: Vec<u8> = (0..9000_u32).map(|number| number.to_le_bytes()[0] | 1).collect();
        for (start, length) in [(0, 4096), (0, 512), (1, 4096), (15, 4099), (3, 1024), (16, 8191)] {
            for skew in [0, 1, 7] {
                let mut to = vec![0; 9000];
                copy_past_caches(&mut to[start..start + length], &from[skew..skew + length]);
                assert_eq!(to[start..start + length], from[skew..skew + length]);
                assert!(to[..start].iter().chain(&to[start + length..]).all(|&byte| byte == 0));
            }
        }
    }
}
