"""Whether an encoder that was pretrained, or learns something beside waypoints, plans better at equal compute, three seeds.

chunkwise train driving/pretrain --run.dir runs/pretrained/contrast-and-motion
chunkwise train driving/pretrain --run.dir runs/pretrained/contrast --objective.ego-motion 0
chunkwise train driving/pretrain --run.dir runs/pretrained/masked --objective.masked 1 \\
    --objective.cross-camera 0 --objective.temporal 0 --objective.ego-motion 0 --data.offsets-s 0
chunkwise train driving/pretrain --run.dir runs/pretrained/distilled --objective.distilled 1 \\
    --objective.cross-camera 0 --objective.temporal 0 --objective.ego-motion 0 --data.offsets-s 0
chunkwise study driving_pretraining --out studies/driving_pretraining
"""
