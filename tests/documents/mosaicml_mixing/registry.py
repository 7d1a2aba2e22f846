from streaming.base.stream import streams_registry

class MyStream(Stream):
    # your implementation goes here
    pass

# Register your custom stream class as 'my_stream'
streams_registry.register('my_stream', func=MyStream)

# StreamingDataset creates a MyStream object when 'my_stream' is passed as a stream_name
dataset = StreamingDataset(
    remote='s3://some/path',
    local='/local/path',
    stream_name='my_stream',
    stream_config={'arg1': 'val1'},
)
