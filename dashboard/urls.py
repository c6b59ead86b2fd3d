"""Routes of the pages. An action is a POST below what it acts on; its GET shows the form."""

from django.urls import URLPattern, URLResolver, path

from dashboard.views import (
    actions,
    alerts,
    answered,
    approvals,
    artifacts,
    audit,
    bulk,
    bulk_export,
    demo,
    handoff,
    history,
    lanes,
    legend,
    log,
    login,
    overview,
    palette,
    saved,
    settings,
    since,
    task,
    tasks,
    together,
    tokens,
    transcript,
    trouble,
    workers,
    workflows,
)

app_name = "dashboard"

urlpatterns: list[URLPattern | URLResolver] = [
    path("", overview.show_overview, name="overview"),
    path("since/", since.show_since, name="since"),
    path("stalled/", trouble.show_trouble, name="trouble"),
    path("workers/", workers.show_workers, name="workers"),
    path("workers/<str:owner>/<slug:name>/", workers.tell_worker, name="worker-act"),
    path("lanes/", lanes.show_lanes, name="lanes"),
    path("lanes/set/", lanes.edit_lane, name="lane"),
    path("lanes/act/", lanes.act_on_lane, name="lane-act"),
    path("workflows/", workflows.show_workflows, name="workflows"),
    path("workflows/<str:name>/", workflows.show_workflow, name="workflow"),
    path("audit/", audit.show_audit, name="audit"),
    path("audit/export/<slug:kind>/", audit.export_audit, name="audit-export"),
    path("palette/", palette.find_places, name="palette"),
    path("legend/", legend.show_legend, name="legend"),
    path("settings/", settings.show_settings, name="settings"),
    # tasks/
    path("tasks/", tasks.show_tasks, name="tasks"),
    path("tasks/demo/", demo.delete_demo, name="delete-demo"),
    path("tasks/words/", tasks.list_words, name="words"),
    path("tasks/views/", saved.show_views, name="saved-views"),
    path("tasks/home/", saved.open_home, name="tasks-home"),
    path("tasks/views/new/", saved.make_view, name="view-new"),
    path("tasks/views/<uuid:view_id>/<slug:name>/", saved.act_on_view, name="view-act"),
    path("tasks/<uuid:task_id>/", task.show_task, name="task"),
    path("tasks/<uuid:task_id>/outputs/", history.show_outputs, name="outputs"),
    path("tasks/<uuid:task_id>/outputs/<int:seq>/", history.show_output, name="output"),
    path("tasks/<uuid:task_id>/events/", history.show_events, name="events"),
    path("tasks/<uuid:task_id>/log/", log.show_log, name="log"),
    path("tasks/<uuid:task_id>/handoff/", handoff.show_handoff, name="handoff"),
    path("tasks/<uuid:task_id>/transcript/", transcript.show_transcript, name="transcript"),
    path("tasks/<uuid:task_id>/<slug:name>/", actions.act_on_task, name="act"),
    # bulk/
    path("bulk/", bulk.list_bulk, name="bulks"),
    path("bulk/new/", bulk.make_bulk, name="bulk-new"),
    path("bulk/export/<slug:kind>/", bulk_export.export_tasks, name="bulk-export"),
    path("bulk/<uuid:bulk_id>/", bulk.show_bulk, name="bulk"),
    path("bulk/<uuid:bulk_id>/stop/", bulk.stop_bulk, name="bulk-stop"),
    # approvals/
    path("approvals/", approvals.show_approvals, name="approvals"),
    path("approvals/together/", together.answer_together, name="together"),
    path("approvals/answers/", answered.show_answers, name="answers"),
    path("approvals/<uuid:approval_id>/", approvals.show_approval, name="approval"),
    path(
        "approvals/<uuid:approval_id>/files/<int:index>/", approvals.show_file, name="approval-file"
    ),
    path("approvals/<uuid:approval_id>/answer/", approvals.answer_approval, name="answer"),
    path("approvals/<uuid:approval_id>/undo/", approvals.undo_answer, name="undo"),
    # artifacts/
    path("artifacts/<uuid:artifact_id>/", artifacts.download_artifact, name="artifact"),
    path("artifacts/<uuid:artifact_id>/view/", artifacts.show_artifact, name="artifact-view"),
    path("artifacts/<uuid:artifact_id>/changes/", artifacts.show_changes, name="artifact-changes"),
    # alerts/
    path("alerts/", alerts.show_alerts, name="alerts"),
    path("alerts/new/", alerts.make_alert, name="alert-new"),
    path("alerts/<uuid:rule_id>/", alerts.edit_alert, name="alert"),
    path("alerts/<uuid:rule_id>/<slug:name>/", alerts.act_on_alert, name="alert-act"),
    # tokens/
    path("tokens/", tokens.show_tokens, name="tokens"),
    path("tokens/new/", tokens.make_new, name="token-new"),
    path("tokens/<uuid:token_id>/<slug:name>/", tokens.act_on_token, name="token-act"),
    # Signing in and out
    path("login/", login.sign_in, name="login"),
    path("login/link/<str:key>/<str:token>/", login.follow_link, name="login-link"),
    path("logout/", login.sign_out, name="logout"),
]
