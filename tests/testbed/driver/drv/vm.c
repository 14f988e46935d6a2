// SPDX-License-Identifier: GPL-2.0-only
/*
 * GPU address spaces. Page tables are real buffer objects in VRAM, charged to
 * whoever maps; what they would contain is not simulated.
 *
 * The rule, four levels as on gfx9 and later, 4 KiB a table:
 *   PDB2 (root)  one, at open
 *   PDB1         one per 512 GiB touched by a mapping
 *   PDB0         one per 1 GiB touched
 *   PTB          one per 2 MiB touched, unless the mapping covers the 2 MiB
 *                whole, aligned in the buffer too, and the buffer is in VRAM
 *                (then the PDB0 entry maps it)
 * Tables are freed with the address space, not by unmapping.
 */
#include <linux/interval_tree_generic.h>
#include <linux/moduleparam.h>
#include <linux/overflow.h>
#include <linux/slab.h>

#include "amdgpu.h"
#include "kfd.h"

static bool huge_pde = true;
module_param(huge_pde, bool, 0644);
MODULE_PARM_DESC(huge_pde, "map whole 2 MiB ranges of VRAM without a PTB (default true)");

#define SIM_TABLE_BYTES 4096

#define MAPPING_START(m) ((m)->start)
#define MAPPING_LAST(m)	 ((m)->last)

INTERVAL_TREE_DEFINE(struct amdgpu_bo_va_mapping, rb, uint64_t, __subtree_last, MAPPING_START,
		     MAPPING_LAST, static __maybe_unused, sim_vm_it)

static DEFINE_IDA(amdgpu_pasid_ida);

int amdgpu_pasid_alloc(unsigned int bits)
{
	return ida_alloc_range(&amdgpu_pasid_ida, 1U << (bits - 1), (1U << bits) - 1, GFP_KERNEL);
}

void amdgpu_pasid_free(u32 pasid)
{
	ida_free(&amdgpu_pasid_ida, pasid);
}

noinline int amdgpu_vm_pt_create(struct amdgpu_device *adev, struct amdgpu_vm *vm, int level,
				 bool immediate, struct amdgpu_bo_vm **vmbo, int32_t xcp_id)
{
	struct amdgpu_bo_param bp = {
		.size = SIM_TABLE_BYTES,
		.byte_align = AMDGPU_GPU_PAGE_SIZE,
		.bo_ptr_size = sizeof(struct amdgpu_bo_vm),
		.domain = AMDGPU_GEM_DOMAIN_VRAM,
		.flags = AMDGPU_GEM_CREATE_VRAM_CONTIGUOUS | AMDGPU_GEM_CREATE_CPU_GTT_USWC |
			 AMDGPU_GEM_CREATE_NO_CPU_ACCESS,
		.type = ttm_bo_type_kernel,
		.no_wait_gpu = immediate,
		.xcp_id_plus1 = xcp_id + 1,
	};
	int r;

	r = amdgpu_bo_create_vm(adev, &bp, vmbo);
	if (r)
		return r;
	vm->sim_table_count++;
	vm->sim_table_bytes += amdgpu_bo_size(&(*vmbo)->bo);
	return 0;
}

static int sim_vm_table(struct amdgpu_device *adev, struct amdgpu_vm *vm,
			enum amdgpu_vm_level level, u64 index)
{
	unsigned long key = (unsigned long)level << 56 | index;
	struct amdgpu_bo_vm *table;
	struct amdgpu_bo *bo;
	int r;

	if (xa_load(&vm->sim_tables, key))
		return 0;
	r = amdgpu_vm_pt_create(adev, vm, level, false, &table, 0);
	if (r)
		return r;
	r = xa_err(xa_store(&vm->sim_tables, key, table, GFP_KERNEL));
	if (r) {
		vm->sim_table_count--;
		vm->sim_table_bytes -= amdgpu_bo_size(&table->bo);
		bo = &table->bo;
		amdgpu_bo_unref(&bo);
	}
	return r;
}

/* Tables for GPU pages @start..@last of a mapping whose first page is @offset bytes in. */
static int sim_vm_alloc_tables(struct amdgpu_device *adev, struct amdgpu_vm *vm, u64 start,
			       u64 last, u64 offset, bool huge)
{
	u64 i;
	int r;

	/* A 2 MiB entry needs memory that is aligned as the address is. */
	if ((start ^ (offset >> PAGE_SHIFT)) & 511)
		huge = false;
	for (i = start >> 27; i <= last >> 27; i++) {
		r = sim_vm_table(adev, vm, AMDGPU_VM_PDB1, i);
		if (r)
			return r;
	}
	for (i = start >> 18; i <= last >> 18; i++) {
		r = sim_vm_table(adev, vm, AMDGPU_VM_PDB0, i);
		if (r)
			return r;
	}
	for (i = start >> 9; i <= last >> 9; i++) {
		if (huge && start <= i << 9 && last >= (i << 9) + 511) {
			/* Straight to the block the mapping ends in. */
			i = max(i, ((last + 1) >> 9) - 1);
			continue;
		}
		r = sim_vm_table(adev, vm, AMDGPU_VM_PTB, i);
		if (r)
			return r;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

int amdgpu_vm_init(struct amdgpu_device *adev, struct amdgpu_vm *vm, int32_t xcp_id)
{
	struct amdgpu_bo_vm *root;
	int r;

	vm->va = RB_ROOT_CACHED;
	mutex_init(&vm->sim_lock);
	INIT_LIST_HEAD(&vm->sim_bo_vas);
	INIT_LIST_HEAD(&vm->vm_list_node);
	xa_init(&vm->sim_tables);
	r = amdgpu_vm_pt_create(adev, vm, AMDGPU_VM_PDB2, false, &root, xcp_id);
	if (r)
		return r;
	vm->root.vm = vm;
	vm->root.bo = &root->bo;
	root->bo.vm_bo = &vm->root;
	return 0;
}

void amdgpu_vm_fini(struct amdgpu_device *adev, struct amdgpu_vm *vm)
{
	struct amdgpu_bo_va *bo_va, *next;
	struct amdgpu_bo_vm *table;
	struct amdgpu_bo *bo;
	unsigned long key;

	amdgpu_amdkfd_gpuvm_destroy_cb(adev, vm);
	mutex_lock(&vm->sim_lock);
	list_for_each_entry_safe(bo_va, next, &vm->sim_bo_vas, sim_vm_node)
		amdgpu_vm_bo_del(adev, bo_va);
	mutex_unlock(&vm->sim_lock);
	xa_for_each(&vm->sim_tables, key, table) {
		bo = &table->bo;
		amdgpu_bo_unref(&bo);
	}
	xa_destroy(&vm->sim_tables);
	if (vm->root.bo)
		vm->root.bo->vm_bo = NULL;
	amdgpu_bo_unref(&vm->root.bo);
	vm->sim_table_count = 0;
	vm->sim_table_bytes = 0;
	mutex_destroy(&vm->sim_lock);
}

struct amdgpu_bo_va *amdgpu_vm_bo_find(struct amdgpu_vm *vm, struct amdgpu_bo *bo)
{
	struct amdgpu_bo_va *bo_va;

	lockdep_assert_held(&vm->sim_lock);
	list_for_each_entry(bo_va, &vm->sim_bo_vas, sim_vm_node) {
		if (bo_va->base.bo == bo)
			return bo_va;
	}
	return NULL;
}

struct amdgpu_bo_va *amdgpu_vm_bo_add(struct amdgpu_device *adev, struct amdgpu_vm *vm,
				      struct amdgpu_bo *bo)
{
	struct amdgpu_bo_va *bo_va;

	lockdep_assert_held(&vm->sim_lock);
	bo_va = kzalloc(sizeof(*bo_va), GFP_KERNEL);
	if (!bo_va)
		return NULL;
	bo_va->base.vm = vm;
	bo_va->base.bo = bo;
	bo_va->ref_count = 1;
	INIT_LIST_HEAD(&bo_va->valids);
	list_add_tail(&bo_va->sim_vm_node, &vm->sim_bo_vas);
	return bo_va;
}

static void sim_mapping_free(struct amdgpu_vm *vm, struct amdgpu_bo_va_mapping *mapping)
{
	sim_vm_it_remove(mapping, &vm->va);
	list_del(&mapping->list);
	kfree(mapping);
}

void amdgpu_vm_bo_del(struct amdgpu_device *adev, struct amdgpu_bo_va *bo_va)
{
	struct amdgpu_bo_va_mapping *mapping, *next;

	lockdep_assert_held(&bo_va->base.vm->sim_lock);
	list_for_each_entry_safe(mapping, next, &bo_va->valids, list)
		sim_mapping_free(bo_va->base.vm, mapping);
	list_del(&bo_va->sim_vm_node);
	kfree(bo_va);
}

int amdgpu_vm_bo_map(struct amdgpu_device *adev, struct amdgpu_bo_va *bo_va, uint64_t saddr,
		     uint64_t offset, uint64_t size, uint32_t flags)
{
	struct amdgpu_bo_va_mapping *mapping;
	struct amdgpu_bo *bo = bo_va->base.bo;
	struct amdgpu_vm *vm = bo_va->base.vm;
	u64 start, last, end;
	bool in_vram;
	int r;

	lockdep_assert_held(&vm->sim_lock);
	if (saddr & ~PAGE_MASK || offset & ~PAGE_MASK || size & ~PAGE_MASK || !size ||
	    check_add_overflow(saddr, size, &end) || check_add_overflow(offset, size, &last) ||
	    last > amdgpu_bo_size(bo))
		return -EINVAL;
	start = saddr >> PAGE_SHIFT;
	last = (end >> PAGE_SHIFT) - 1;
	if (last >= adev->vm_manager.max_pfn)
		return -EINVAL;
	if (sim_vm_it_iter_first(&vm->va, start, last))
		return -EINVAL;

	mapping = kmalloc(sizeof(*mapping), GFP_KERNEL);
	if (!mapping)
		return -ENOMEM;
	r = amdgpu_bo_reserve(bo, false);
	if (r)
		goto err;
	in_vram = bo->tbo.resource && bo->tbo.resource->mem_type == TTM_PL_VRAM;
	amdgpu_bo_unreserve(bo);
	r = sim_vm_alloc_tables(adev, vm, start, last, offset, huge_pde && in_vram);
	if (r)
		goto err;

	mapping->bo_va = bo_va;
	mapping->start = start;
	mapping->last = last;
	mapping->offset = offset;
	mapping->flags = flags;
	list_add_tail(&mapping->list, &bo_va->valids);
	sim_vm_it_insert(mapping, &vm->va);
	return 0;

err:
	kfree(mapping);
	return r;
}

int amdgpu_vm_bo_unmap(struct amdgpu_device *adev, struct amdgpu_bo_va *bo_va, uint64_t saddr)
{
	struct amdgpu_bo_va_mapping *mapping;

	lockdep_assert_held(&bo_va->base.vm->sim_lock);
	list_for_each_entry(mapping, &bo_va->valids, list) {
		if (mapping->start == saddr >> PAGE_SHIFT) {
			sim_mapping_free(bo_va->base.vm, mapping);
			return 0;
		}
	}
	return -ENOENT;
}

/* Drop what lies in the range; a mapping that reaches beyond it is cut or split. */
int amdgpu_vm_bo_clear_mappings(struct amdgpu_device *adev, struct amdgpu_vm *vm, uint64_t saddr,
				uint64_t size)
{
	struct amdgpu_bo_va_mapping *mapping, *tail, *spare;
	u64 start, last;

	lockdep_assert_held(&vm->sim_lock);
	if (saddr & ~PAGE_MASK || size & ~PAGE_MASK || !size)
		return -EINVAL;
	start = saddr >> PAGE_SHIFT;
	last = start + (size >> PAGE_SHIFT) - 1;

	/* At most one mapping can reach beyond both ends. */
	spare = kmalloc(sizeof(*spare), GFP_KERNEL);
	if (!spare)
		return -ENOMEM;
	while ((mapping = sim_vm_it_iter_first(&vm->va, start, last))) {
		sim_vm_it_remove(mapping, &vm->va);
		if (mapping->last > last) {
			if (mapping->start < start) {
				tail = spare;
				spare = NULL;
				*tail = *mapping;
				list_add_tail(&tail->list, &mapping->bo_va->valids);
				mapping->last = start - 1;
				sim_vm_it_insert(mapping, &vm->va);
			} else {
				tail = mapping;
			}
			tail->offset += (last + 1 - tail->start) << PAGE_SHIFT;
			tail->start = last + 1;
			sim_vm_it_insert(tail, &vm->va);
		} else if (mapping->start < start) {
			mapping->last = start - 1;
			sim_vm_it_insert(mapping, &vm->va);
		} else {
			list_del(&mapping->list);
			kfree(mapping);
		}
	}
	kfree(spare);
	return 0;
}

/* The real one tries to resolve a retry fault; nothing here can be resolved. */
noinline bool amdgpu_vm_handle_fault(struct amdgpu_device *adev, u32 pasid, u32 vmid, u32 node_id,
				     uint64_t addr, uint64_t ts, bool write_fault)
{
	kfd_smi_event_update_vmfault(adev->kfd.dev ? adev->kfd.dev->nodes[0] : NULL, pasid);
	return false;
}
