"""Parallel back end: plan how a graph is split over a mesh of devices, and run the plan."""

from chop.distributed.hand_plans import comparison_records, hand_plans
from chop.distributed.mesh import Mesh
from chop.distributed.pipeline import PipelinePlan, PipelineStage, make_pipeline
from chop.distributed.plan import Cost, Plan, fixed_plan, make_plan
from chop.distributed.plan_file import LoadedPlan, load_plan, plan_differences, plan_document
from chop.distributed.plan_report import cost_records, plan_records, plan_table
from chop.distributed.strategies import Strategy
from chop.distributed.transformers_styles import transformers_plan

__all__ = [
    "Cost",
    "LoadedPlan",
    "Mesh",
    "PipelinePlan",
    "PipelineStage",
    "Plan",
    "Strategy",
    "comparison_records",
    "cost_records",
    "fixed_plan",
    "hand_plans",
    "load_plan",
    "make_pipeline",
    "make_plan",
    "plan_differences",
    "plan_document",
    "plan_records",
    "plan_table",
    "transformers_plan",
]
