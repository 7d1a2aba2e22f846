"""The public names of Megatron-Energon 7.4, with the arguments that they take.

A line for each: the name, for methods with its class, and the names of its arguments; `@` stands
for a property. Left out are arguments for the insides of that library, and the names of those that
are only ever given by their place.
"""

from __future__ import annotations

VERSION = "7.4"

ROOT = """
AugmentTaskEncoder task_encoder
AugmentTaskEncoder.decoder @
AugmentTaskEncoder.encode_sample
AugmentTaskEncoder.batch
BaseCoreDatasetFactory
BaseCoreDatasetFactory.build worker_rotation_offset
BaseCoreDatasetFactory.as_file_store
BaseWebdatasetFactory path split_part training worker_config shuffle_over_epochs
    parallel_shard_iters max_samples_per_sequence subset split_config part_filter
BaseWebdatasetFactory.build worker_rotation_offset
BaseWebdatasetFactory.as_file_store
BaseWebdatasetFactory.load_sample raw_data
BaseWebdatasetFactory.config
BaseWebdatasetFactory.prepare_dataset parent_path paths split_parts_ratio split_parts_patterns
    split_config shuffle_seed progress_fn workers tar_index_only media_filter fix_duplicates
    index_sqlite_tmp_path
BaseWebdatasetFactory.add_media_metadata parent_path media_filter workers progress_fn
    index_sqlite_tmp_path
basic_sample_keys crude_sample additional_source_info
batch_list batch
batch_pad_stack batch
batch_stack batch
Batch __key__ __restore_key__ __subflavors__ __sources__
Batch.derive_from base_batch
Batch.from_samples samples
BatchDataset dataset batch_size batcher batcher_stateless batcher_config drop_last
    failure_tolerance worker_config
BlendDataset *dataset_weights worker_config
CachePool
CachePool.get ds fname sample
CachePool.get_lazy ds fname
CachePool.to_cache data name
CachePool.close
CaptioningSample __key__ __restore_key__ __subflavors__ __sources__ image caption
CaptioningWebdataset path
concat_pad batch
ConcatDataset *datasets worker_config
cooker fn need_cache need_primary
Cooker cook has_subflavors
Cooker.need_primary @
Cooker.need_cache @
Cooker.is_match subflavors
CrudeJsonlDatasetFactory path training worker_config shuffle_over_epochs parallel_shard_iters
    max_samples_per_sequence subset part_filter
CrudeJsonlDatasetFactory.build worker_rotation_offset
CrudeJsonlDatasetFactory.as_file_store
CrudeJsonlDatasetFactory.config
CrudeJsonlDatasetFactory.prepare_dataset path
CrudeSample
CrudeWebdataset path subflavors part_filter
DatasetLoader path split_part subflavors shuffle_over_epochs_multiplier dataset_config
    split_config
DatasetLoader.get_dataset training split_part worker_config subflavors subset
DatasetLoader.get_datasets training split_part worker_config subflavors
    shuffle_over_epochs_multiplier subset
DatasetLoaderInterface
DatasetLoaderInterface.traverse split_part
DatasetLoaderInterface.get_datasets training split_part worker_config subflavors
    shuffle_over_epochs_multiplier subset
DatasetLoaderInterface.prepare split_part
DecodeFileStore inner decoder
DecodeFileStore.get_path
DecodeFileStore.get_media_metadata key
DefaultCrudeJsonlDatasetFactory path subflavors
DefaultDecoderWebdatasetFactory path decoder
DefaultGenericWebdatasetFactory path subflavors field_map sample_loader part_filter
DefaultGenericWebdatasetFactory.load_sample
DefaultTaskEncoder encoded_sample_type raw_batch_type batch_type
DirectLazy
DirectLazy.get sample
edataclass
EpochizeDataset dataset length worker_config
FileCacheLazy
FileCacheLazy.get sample
FileStore
FileStore.get key sample
FileStore.get_path
FileStore.get_media_metadata key
FileStoreCachePool parent_cache_dir num_workers max_cache_size_gbytes max_cache_count method
FileStoreCachePool.get ds fname sample
FileStoreCachePool.get_lazy ds fname
FileStoreCachePool.to_cache data name
FileStoreCachePool.close
FileStoreDecoder
FileStoreDecoder.decode
FilterDataset dataset filter_fn filter_fn_config worker_config
GcDataset dataset worker_config every_n_iter freeze
generic_batch batch
generic_concat batch
get_loader dataset worker_config prefetch_factor cache_pool watchdog_timeout_seconds
    watchdog_initial_timeout_seconds fail_on_timeout
get_savable_loader dataset worker_config checkpoint_every_sec checkpoint_every_min_n_samples
    n_checkpoints gc_collect_every_n_steps prefetch_factor cache_pool watchdog_timeout_seconds
    watchdog_initial_timeout_seconds fail_on_timeout
get_train_dataset path split_part worker_config batch_size batch_drop_last packing_buffer_size
    shuffle_buffer_size max_samples_per_sequence virtual_epoch_length
    shuffle_over_epochs_multiplier task_encoder repeat
get_val_dataset path split_part worker_config batch_size batch_drop_last packing_buffer_size
    limit task_encoder
get_val_datasets path split_part worker_config batch_size batch_drop_last packing_buffer_size
    limit task_encoder
GroupBatchDataset dataset fixed_batch_size sample_group_key batcher batcher_stateless
    batcher_config drop_last failure_tolerance worker_config
homogeneous_concat_mix samples
ImageClassificationSample __key__ __restore_key__ __subflavors__ __sources__ image label
    label_name
ImageClassificationWebdataset path
ImageSample __key__ __restore_key__ __subflavors__ __sources__ image
ImageWebdataset path
InterleavedSample __key__ __restore_key__ __subflavors__ __sources__ sequence
InterleavedWebdataset path
IterMapDataset dataset iter_map_fn len_map_fn stateless_iter_fn iter_map_fn_config worker_config
JoinedWebdatasetFactory inner_datasets training worker_config shuffle_over_epochs
    parallel_shard_iters max_samples_per_sequence subset join_index joiner
JoinedWebdatasetFactory.build worker_rotation_offset
JoinedWebdatasetFactory.as_file_store
JoinedWebdatasetFactory.config
Lazy
Lazy.get sample
LimitDataset dataset length reset_after_epoch worker_config
load_dataset path
log_exception e sample sources
LogSampleDataset dataset mode worker_config get_keys_fn
MapDataset dataset map_fn stateless_map_fn map_fn_config failure_tolerance worker_config
Metadataset path splits
Metadataset.traverse split_part
Metadataset.get_datasets training split_part worker_config subflavors
    shuffle_over_epochs_multiplier subset
MetadatasetV2 path splits
MetadatasetV2.traverse split_part
MetadatasetV2.prepare split_part
MetadatasetV2.get_datasets training split_part worker_config subflavors
    shuffle_over_epochs_multiplier subset
MixBatchDataset *dataset_weights batch_size batch_mix_fn worker_config
MockLazy fname get_fn
MockLazy.get sample
MultiChoiceVQASample __key__ __restore_key__ __subflavors__ __sources__ image context choices
    correct_choice_idx
MultiChoiceVQAWebdataset path
NoCachePool
NoCachePool.get ds fname sample
NoCachePool.get_lazy ds fname
NoCachePool.to_cache data name
NoCachePool.close
OCRSample __key__ __restore_key__ __subflavors__ __sources__ image text block_boxes
    block_classes block_text lines_boxes lines_text words_boxes words_text chars_boxes
    chars_text
OCRWebdataset path
PackingDataset dataset buffer_size pre_packer final_packer final_packer_stateless sample_encoder
    sample_encoder_stateless packer_config pre_packer_failure_tolerance
    final_packer_failure_tolerance sample_encoder_failure_tolerance worker_config
PrimaryFileStore inner current_key
PrimaryFileStore.get key sample
PrimaryFileStore.get_path
PrimaryFileStore.get_media_metadata key
prepare_metadataset path
RepeatDataset dataset repeats restart worker_config
reraise_exception e sample sources
Sample __key__ __restore_key__ __subflavors__ __sources__
Sample.derive_from base_sample
Sample.from_joined
SampleDecoder image_decode av_decode video_decode_audio guess_content
SampleDecoder.decode
SampleDecoder.config
SavableDataLoader dataset checkpoint_every_sec checkpoint_every_min_n_samples n_checkpoints
    gc_collect_every_n_steps gc_freeze_at_start prefetch_factor cache_pool
    watchdog_timeout_seconds watchdog_initial_timeout_seconds fail_on_timeout
SavableDataLoader.save_state_rank
SavableDataLoader.restore_state_rank
SavableDataLoader.save_state_global global_dst_rank
SavableDataLoader.restore_state_global state src_rank
SavableDataLoader.can_restore_sample
SavableDataLoader.restore_sample restore_key
SavableDataLoader.config
SavableDataset
traverse_metadataset path split_part
ShuffleBufferDataset dataset size worker_config
SimilarityInterleavedSample __key__ __restore_key__ __subflavors__ __sources__ images texts
    audio video similarity_matrix matched_text_indices
SimilarityInterleavedWebdataset path
SkipSample
SourceInfo dataset_path index shard_name file_names
StandardWebdatasetFactory path sample_type
stateless fn restore_seeds failure_tolerance
SystemFileStore base_dir
SystemFileStore.get_path
SystemFileStore.get_media_metadata key
TaskEncoder
TaskEncoder.cook_crude_sample sample cooker aux
TaskEncoder.encode_sample sample
TaskEncoder.preencode_sample sample
TaskEncoder.postencode_sample sample
TaskEncoder.batch samples
TaskEncoder.batch_group_criterion sample
TaskEncoder.encode_batch batch
TaskEncoder.select_samples_to_pack samples
TaskEncoder.pack_selected_samples samples
TaskEncoder.build_batch dataset batch_size batch_drop_last packing_buffer_size worker_config
TaskEncoder.build_cook_crude_sample dataset worker_config subflavors get_primary_aux aux
TaskEncoder.build_encode_sample dataset worker_config
TaskEncoder.build_train_datasets datasets worker_config batch_size batch_drop_last
    packing_buffer_size virtual_epoch_length shuffle_buffer_size blend_mode repeat
TaskEncoder.build_val_datasets datasets worker_config batch_size batch_drop_last
    packing_buffer_size limit
TaskEncoder.current_batch_index @
TaskEncoder.current_sample_index @
TaskEncoder.cache @
TextSample __key__ __restore_key__ __subflavors__ __sources__ text
TextWebdataset path
VidQASample __key__ __restore_key__ __subflavors__ __sources__ video context answers
    answer_weights
VidQAWebdataset path
VQAOCRWebdataset path
VQASample __key__ __restore_key__ __subflavors__ __sources__ image context answers
    answer_weights
VQAWebdataset path
WorkerConfig rank world_size num_workers data_parallel_group seed_offset worker_debug_path
    worker_log_level global_error_handler restore_error_handler
WorkerConfig.global_rank
WorkerConfig.default_worker_config num_workers data_parallel_group
WorkerConfig.rank_worker_id
WorkerConfig.global_worker_id override_local_worker_id
WorkerConfig.worker_seed override_local_worker_id
WorkerConfig.config
"""

MODULES = {
    "errors": """
FatalSampleError
""",
    "dataset_config": """
get_dataset_from_config path dataset_config split_config split_part training subflavors
    worker_config sample_type
""",
    "media": """
AVMetadata video_duration video_num_frames video_fps video_width video_height audio_duration
    audio_channels audio_sample_rate audio_num_samples
ImageMetadata width height format mode
MediaMetadataBase
MediaMetadataBase.to_dict
MediaMetadataBase.from_dict payload
MediaMetadataType
deserialize_media_metadata metadata_type metadata_json
serialize_media_metadata metadata
""",
    "media.extractor": """
MediaFilterStrategy
MediaFilterConfig strategy patterns
MediaFilterConfig.parse glob header extension
MediaFilterConfig.should_consider_all
MediaFilterConfig.should_consider_media name
MediaFilterConfig.extract_metadata source filename
""",
    "media.filesystem_prepare": """
prepare_filesystem_dataset root_path media_filter progress workers index_sqlite_tmp_path
""",
    "epathlib": """
EPath initial_path
EPath.open mode block_size prefetch_file
EPath.read_text
EPath.read_bytes
EPath.write_text text
EPath.write_bytes data
EPath.copy target
EPath.name @
EPath.parent @
EPath.url @
EPath.is_local
EPath.local_path
EPath.is_dir
EPath.is_file
EPath.mkdir exist_ok parents
EPath.walk
EPath.glob pattern
EPath.size
EPath.with_suffix suffix
EPath.move target
EPath.unlink
EPath.relative_to other
EPath.stat
EPath.display_name @
""",
    "task_encoder.base": """
get_stateless fn
get_failure_tolerance fn default_failure_tolerance
""",
    "savable_loader": """
SavableDataLoaderState
BasicDataLoader dataset gc_collect_every_n_steps gc_freeze_at_start prefetch_factor
    cache_pool watchdog_timeout_seconds watchdog_initial_timeout_seconds fail_on_timeout
BasicDataLoader.config
BasicDataLoader.can_restore_sample
BasicDataLoader.restore_sample restore_key
""",
    "wrappers.watchdog_dataset": """
WatchdogDataset dataset worker_config timeout_seconds initial_timeout_seconds
    fail_on_timeout
""",
    "metadataset.loader_interface": """
DatasetBlendMode
LoadedDataset dataset weight repetitions aux
LoadedDatasetList datasets blend_mode
TraversedDatasetReference path split_part aux subflavors
""",
    "sample_utils": """
default_get_batch_keys batch
format_sample_compact sample depth max_items max_str_len
format_sample_detailed sample indent
""",
    "source_info": """
add_source_info sample *source_infos
get_source_info sample
""",
    "av": """
AVDecoder stream suppress_warnings
AVDecoder.get_video
AVDecoder.get_video_clips video_clip_ranges video_unit video_out_frame_size
AVDecoder.get_audio
AVDecoder.get_audio_clips audio_clip_ranges audio_unit
AVDecoder.get_video_with_audio
AVDecoder.get_clips video_clip_ranges audio_clip_ranges video_unit audio_unit
    video_out_frame_size
AVDecoder.get_frames video_decode_audio
AVDecoder.get_video_fps
AVDecoder.get_audio_samples_per_second
AVDecoder.has_audio_stream
AVDecoder.has_video_stream
AVDecoder.get_audio_duration
AVDecoder.get_video_duration get_frame_count
AVDecoder.get_metadata get_video get_video_duration get_video_frame_count
    get_video_frame_size get_audio get_audio_duration get_audio_num_samples
AVWebdatasetDecoder video_decode_audio av_decode
AVData video_clips video_timestamps audio_clips audio_timestamps
get_clips_uniform av_decoder clip_duration_seconds num_clips request_video request_audio
    video_out_frame_size
get_single_frames_uniform av_decoder num_frames video_out_frame_size return_timestamps
""",
}

PATHS = {
    "av": "AVData AVDecoder AVWebdatasetDecoder get_clips_uniform get_single_frames_uniform",
    "av.av_data": "AVData",
    "av.av_decoder": "AVDecoder AVWebdatasetDecoder",
    "cache": (
        "CachePool DecodeFileStore DirectLazy FileCacheLazy FileStore FileStoreCachePool "
        "FileStoreDecoder Lazy MockLazy NoCachePool PrimaryFileStore SystemFileStore"
    ),
    "cache.base": "CachePool FileStore FileStoreDecoder Lazy",
    "cache.file_cache_pool": "FileCacheLazy FileStoreCachePool",
    "cache.file_store": "DecodeFileStore JsonlFileStore SystemFileStore WebdatasetFileStore",
    "cache.no_cache": "DirectLazy NoCachePool",
    "dataset_config": "get_dataset_from_config",
    "edataclass": "edataclass",
    "epathlib": "DEFAULT_PROFILE_NAME EPath",
    "epathlib.epath": "EPath",
    "errors": "FatalSampleError SkipSample log_exception reraise_exception",
    "flavors": (
        "AVData AVDecoder BaseCoreDatasetFactory BaseWebdatasetFactory CaptioningSample "
        "CaptioningWebdataset CrudeJsonlDatasetFactory CrudeSample CrudeWebdataset "
        "DefaultCrudeJsonlDatasetFactory DefaultDecoderWebdatasetFactory "
        "DefaultGenericWebdatasetFactory EmptyDatasetError JoinedWebdatasetFactory "
        "PinMemoryMixin Sample SampleDecoder SavableDataset StandardWebdatasetFactory "
        "VQAOCRWebdataset WebdatasetMeta"
    ),
    "flavors.base_dataset": (
        "BaseCoreDatasetFactory FlexState PinMemoryMixin Sample SavableDataset"
    ),
    "flavors.captioning": "CaptioningSample CaptioningWebdataset",
    "flavors.crude": "CrudeSample CrudeWebdataset",
    "flavors.image": "ImageSample ImageWebdataset",
    "flavors.image_classification": "ImageClassificationSample ImageClassificationWebdataset",
    "flavors.interleaved": "InterleavedSample InterleavedWebdataset",
    "flavors.jsonl": "CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory",
    "flavors.jsonl.crude_jsonl_dataset": (
        "CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory"
    ),
    "flavors.multichoice_vqa": "MultiChoiceVQASample MultiChoiceVQAWebdataset",
    "flavors.ocr": "OCRSample OCRWebdataset",
    "flavors.similarity_interleaved": (
        "SimilarityInterleavedSample SimilarityInterleavedWebdataset"
    ),
    "flavors.text": "TextSample TextWebdataset",
    "flavors.vid_qa": "VidQASample VidQAWebdataset",
    "flavors.vqa": "VQASample VQAWebdataset",
    "flavors.vqa_and_ocr": "VQAOCRSample VQAOCRWebdataset",
    "flavors.webdataset": (
        "BaseWebdatasetFactory DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory "
        "EmptyDatasetError JoinedWebdatasetFactory MAIN_FOLDER_NAME SampleDecoder "
        "StandardWebdatasetFactory WebdatasetMeta"
    ),
    "flavors.webdataset.base_webdataset": "BaseWebdatasetFactory",
    "flavors.webdataset.config": (
        "INDEX_SQLITE_FILENAME INDEX_UUID_FILENAME INFO_JSON_FILENAME INFO_YAML_FILENAME "
        "MAIN_FOLDER_NAME SPLIT_YAML_FILENAME skip_meta_re split_name_re"
    ),
    "flavors.webdataset.default_decoder_webdataset": "DefaultDecoderWebdatasetFactory",
    "flavors.webdataset.default_generic_webdataset": "DefaultGenericWebdatasetFactory",
    "flavors.webdataset.empty_dataset_error": "EmptyDatasetError",
    "flavors.webdataset.joined_webdataset": "JoinedWebdatasetFactory",
    "flavors.webdataset.metadata": (
        "EnergonDatasetType WebdatasetMeta get_dataset_type get_info_shard_files"
    ),
    "flavors.webdataset.prepare": "WebdatasetPreparator",
    "flavors.webdataset.sample_decoder": "AVDecoderType ImageDecoderType SampleDecoder",
    "flavors.webdataset.standard_webdataset": "StandardWebdatasetFactory",
    "loader": "get_loader get_savable_loader",
    "media": (
        "AVMetadata ImageMetadata MediaMetadataBase MediaMetadataType "
        "deserialize_media_metadata serialize_media_metadata"
    ),
    "media.extractor": "MediaFilterConfig MediaFilterStrategy",
    "media.filesystem_prepare": "prepare_filesystem_dataset",
    "media.metadata": "AVMetadata ImageMetadata",
    "metadataset": (
        "DatasetLoader DatasetLoaderInterface Metadataset MetadatasetV2 load_dataset "
        "prepare_metadataset traverse_metadataset"
    ),
    "metadataset.dataset_loader": "DatasetLoader",
    "metadataset.loader": "load_dataset prepare_metadataset traverse_metadataset",
    "metadataset.loader_interface": (
        "DatasetBlendMode DatasetLoaderInterface LoadedDataset LoadedDatasetList "
        "TraversedDatasetReference"
    ),
    "metadataset.metadataset": "Metadataset",
    "metadataset.metadataset_v2": "MetadatasetV2",
    "sample_utils": "default_get_batch_keys format_sample_compact format_sample_detailed",
    "savable": "Savable",
    "savable_loader": "BasicDataLoader SavableDataLoader SavableDataLoaderState",
    "source_info": "SourceInfo add_source_info get_source_info",
    "state": "FlexState",
    "task_encoder": (
        "AugmentTaskEncoder Batch Cooker DefaultTaskEncoder TaskEncoder basic_sample_keys "
        "batch_list batch_pad_stack batch_stack cooker generic_batch get_train_dataset "
        "get_val_dataset get_val_datasets stateless"
    ),
    "task_encoder.base": (
        "AugmentTaskEncoder Batch DefaultTaskEncoder TaskEncoder batch_list batch_pad_stack "
        "batch_stack generic_batch get_stateless stateless"
    ),
    "task_encoder.cooking": "Cooker basic_sample_keys cooker",
    "task_encoder.loader": "get_train_dataset get_val_dataset get_val_datasets",
    "transforms": "CustomTransform MergeTransform",
    "worker": "WorkerConfig",
    "wrappers": (
        "BatchDataset BlendDataset ConcatDataset EpochizeDataset FilterDataset GcDataset "
        "GroupBatchDataset IterMapDataset LimitDataset LogSampleDataset MapDataset "
        "MixBatchDataset PackingDataset RepeatDataset ShuffleBufferDataset SkipSample "
        "concat_pad generic_concat homogeneous_concat_mix"
    ),
    "wrappers.base": "BaseWrapperDataset",
    "wrappers.batch_dataset": "BatchDataset",
    "wrappers.blend_dataset": "BlendDataset",
    "wrappers.concat_dataset": "ConcatDataset",
    "wrappers.epochize_dataset": "EpochizeDataset",
    "wrappers.filter_dataset": "FilterDataset",
    "wrappers.gc_dataset": "GcDataset",
    "wrappers.group_batch_dataset": "GroupBatchDataset",
    "wrappers.iter_map_dataset": "IterMapDataset",
    "wrappers.limit_dataset": "LimitDataset",
    "wrappers.log_sample_dataset": "LogSampleDataset",
    "wrappers.map_dataset": "MapDataset",
    "wrappers.mix_batch_dataset": "MixBatchDataset",
    "wrappers.packing_dataset": "PackingDataset",
    "wrappers.repeat_dataset": "RepeatDataset",
    "wrappers.shuffle_buffer_dataset": "ShuffleBufferDataset",
    "wrappers.skip": "SkipSample",
    "wrappers.watchdog_dataset": "WatchdogDataset",
}
"""Modules, and what is imported from them."""

_NO_SEED = "no worker has a seed or a number of its own: which sample comes, and what is drawn for \
it, depends on its position alone"
DIFFERENT = {
    "Cooker.is_match": "cookers are matched when the dataset is made, and an error says what fits",
    "Cooker.need_cache": "what a cooker needs is read from its marks where it is called",
    "Cooker.need_primary": "what a cooker needs is read from its marks where it is called",
    "WorkerConfig.config": "a loader says in config() what decides which samples come",
    "WorkerConfig.global_rank": "torch.distributed.get_rank() says it",
    "WorkerConfig.global_worker_id": _NO_SEED,
    "WorkerConfig.rank_worker_id": _NO_SEED,
    "WorkerConfig.worker_seed": _NO_SEED,
    "task_encoder.base:get_failure_tolerance": "failures are counted for the whole loader",
}
"""Names that are not there, each with the reason."""

_OF_LOADERS = (
    "prefetch_factor cache_pool watchdog_timeout_seconds watchdog_initial_timeout_seconds "
    "fail_on_timeout"
)
PASSED_ON = {
    "SavableDataLoader": _OF_LOADERS,
    "savable_loader:BasicDataLoader": _OF_LOADERS,
    "TaskEncoder.build_train_datasets": (
        "worker_config batch_drop_last packing_buffer_size virtual_epoch_length "
        "shuffle_buffer_size blend_mode repeat"
    ),
    "TaskEncoder.build_val_datasets": "worker_config batch_drop_last packing_buffer_size limit",
    "DatasetLoader.get_dataset": "subflavors shuffle_over_epochs_multiplier subset",
}
"""Arguments that a function takes as `**` and hands on to another one."""
