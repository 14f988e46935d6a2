/* SPDX-License-Identifier: GPL-2.0-only */
/* Included before everything else in place of the kernel's configuration. */
#define CONFIG_BPF_SYSCALL 1
